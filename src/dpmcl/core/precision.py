"""The precision of float32 matrix products and convolutions: full, TF32 on a GPU, or bfloat16.

    precision = "tf32"      # at the top of a spec, or --set precision=tf32

- None: the precision of `dtype`.
- "tf32": matrix products and convolutions on a GPU round their factors to 10 bits of mantissa
  (float32 has 23) and accumulate in float32. On a CPU nothing changes.
- "bf16": h and g run under PyTorch's autocast, on a CPU too, whose products round their factors to
  bfloat16 (7 bits). Products that autocast leaves in float32 may use TF32.

Parameters, optimiser states, features, outputs and losses stay in float32.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch

Precision = Literal["tf32", "bf16"]


_Switched = tuple[torch.dtype, tuple[str, ...]]
"""PyTorch's default type, and the precision of products on a GPU (3 switches) and a CPU (3)."""

_lock = threading.Lock()
_before: _Switched
_blocks: dict[object, _Switched] = {}
"""Settings of the blocks of `arithmetic` that are open in any thread, in order of entry."""


@contextmanager
def arithmetic(precision: Precision | None) -> Iterator[None]:
    """Switch TF32 on a GPU on or off for a block, which the caller's other settings do not reach.

    Those are autocast, which is off in the block, PyTorch's default type, which is float32, and
    lower precision of products on a CPU (`torch.set_float32_matmul_precision`). In the block
    PyTorch's older switches (`allow_tf32`, `get_float32_matmul_precision`) may raise an exception,
    since PyTorch refuses a mixture of old and new ones. Threads share PyTorch's switches: those of
    the block entered last hold for all, and the caller's are restored when no block is open.

    Args:
        precision: TF32 is on for "tf32" and "bf16", off for None; PyTorch's default is on in cuDNN.
    """
    global _before
    block = object()
    with _lock:
        if not _blocks:
            _before = torch.get_default_dtype(), tuple(s.fp32_precision for s in _switches())
        on_gpu = "tf32" if precision else "ieee"
        _blocks[block] = torch.float32, (on_gpu,) * 3 + ("ieee",) * 3
        _set(_blocks[block])
    try:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            yield
    finally:
        with _lock:
            del _blocks[block]
            _set(next(reversed(_blocks.values()), _before))


def _switches() -> list[Any]:
    """Return PyTorch's switches for the precision of products, on a GPU and on a CPU."""
    cuda, cudnn, mkldnn = (getattr(torch.backends, name) for name in ("cuda", "cudnn", "mkldnn"))
    # The last are in bfloat16 after torch.set_float32_matmul_precision("medium").
    return [cuda.matmul, cudnn.conv, cudnn.rnn, mkldnn.matmul, mkldnn.conv, mkldnn.rnn]


def _set(switched: _Switched) -> None:
    dtype, values = switched
    torch.set_default_dtype(dtype)
    for switch, value in zip(_switches(), values, strict=True):
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
