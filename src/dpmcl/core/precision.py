"""How exactly float32 products are computed: in full, as a GPU's TF32, or in bfloat16.

    precision = "tf32"      # at the top of a spec, or --set precision=tf32

None: as `dtype` says. "tf32": matrix products and convolutions on a GPU round their factors to 10
bits of mantissa (float32 has 23) and add up in float32; on a CPU nothing changes. "bf16": h and g
run under PyTorch's autocast, whose products take bfloat16 (7 bits), on a CPU too; what is left in
float32 may use TF32. Parameters, optimiser states, features, outputs and losses stay in float32.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch

Precision = Literal["tf32", "bf16"]


@contextmanager
def arithmetic(precision: Precision | None) -> Iterator[None]:
    """Set PyTorch's switches for TF32 on a GPU for a block, and put them back.

    Within the block the older names (`allow_tf32`, `get_float32_matmul_precision`) may raise,
    since PyTorch refuses a mixture of old and new ones.

    Args:
        precision: TF32 is on for "tf32" and "bf16", off for None; PyTorch has it on in cuDNN.
    """
    switches: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn.conv]  # type: ignore[attr-defined]
    switches.append(torch.backends.cudnn.rnn)
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "tf32" if precision else "ieee"
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.fp32_precision = value


def products(precision: Precision | None, device: torch.device) -> AbstractContextManager[Any]:
    """Return a context in which a module computes products in a precision.

    Autocast for "bf16", without its cache: a mapped or recorded update may not see weights again
    that it has cast.

    Args:
        precision: As a spec has it.
        device: Where the module is.
    """
    if precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
