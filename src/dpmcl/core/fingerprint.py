"""Sums over tensors, a slice at a time, since a tensor may be mapped from a file beyond memory."""

from typing import Any

import torch
from torch import Tensor

_BYTES_AT_ONCE = 1 << 26


def add(out: Any, tensor: Tensor) -> None:
    """Adds a tensor's type, shape and bytes to a hashlib sum."""
    out.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    rows = tensor.detach() if tensor.dim() else tensor.detach()[None]
    step = max(1, _BYTES_AT_ONCE // max(1, rows[:1].numel() * rows.element_size()))
    for start in range(0, len(rows), step):
        # A clone has the strides that a view of bytes needs.
        plain = rows[start : start + step].cpu().clone(memory_format=torch.contiguous_format)
        out.update(plain.view(torch.uint8).numpy().data)
