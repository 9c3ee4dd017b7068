"""The precision of float32 matrix products and convolutions: full, TF32 on a GPU, or bfloat16.

    precision = "tf32"      # at the top of a spec, or --set precision=tf32

- None: the precision of `dtype`.
- "tf32": matrix products and convolutions on a GPU round their factors to 10 bits of mantissa
  (float32 has 23) and accumulate in float32. On a CPU nothing changes.
- "bf16": h and g run under PyTorch's autocast, on a CPU too, whose products round their factors to
  bfloat16 (7 bits). Products that autocast leaves in float32 may use TF32.

Parameters, optimiser states, features, outputs and losses stay in float32.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch

Precision = Literal["tf32", "bf16"]


@contextmanager
def arithmetic(precision: Precision | None) -> Iterator[None]:
    """Switch TF32 on a GPU on or off for a block, which the caller's other settings do not reach.

    Those are autocast, which is off in the block, PyTorch's default type, which is float32, and
    lower precision of products on a CPU (`torch.set_float32_matmul_precision`). In the block
    PyTorch's older switches (`allow_tf32`, `get_float32_matmul_precision`) may raise an exception,
    since PyTorch refuses a mixture of old and new ones.

    Args:
        precision: TF32 is on for "tf32" and "bf16", off for None; PyTorch's default is on in cuDNN.
    """
    cuda, cudnn, mkldnn = (getattr(torch.backends, name) for name in ("cuda", "cudnn", "mkldnn"))
    on_gpu = [cuda.matmul, cudnn.conv, cudnn.rnn]
    on_cpu = [mkldnn.matmul, mkldnn.conv, mkldnn.rnn]  # in bfloat16 after torch's "medium"
    before = [(switch, switch.fp32_precision) for switch in on_gpu + on_cpu]
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float32)
        for switch in on_gpu + on_cpu:
            switch.fp32_precision = "tf32" if precision and switch in on_gpu else "ieee"
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        if default != torch.float32:  # else another thread may have restored the caller's since
            torch.set_default_dtype(default)
        for switch, value in before:
            switch.fp32_precision = value


def product_context(
    precision: Precision | None, device: torch.device
) -> AbstractContextManager[Any]:
    """Return the context in which a module computes its products in a precision.

    It is autocast for "bf16", without autocast's cache, since cast weights must not be used again
    in a mapped or recorded update.

    Args:
        precision: The setting `precision`.
        device: Device of the module.
    """
    if precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
