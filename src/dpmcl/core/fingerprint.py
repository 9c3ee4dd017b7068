"""Hash tensors a slice at a time, since one may be mapped from a file larger than memory."""

from typing import Any

import torch
from torch import Tensor

_BYTES_AT_ONCE = 1 << 26


def add(out: Any, tensor: Tensor) -> None:
    """Add a tensor's type, shape and bytes to a hash.

    Args:
        out: A hash of hashlib.
        tensor: Any tensor, on any device.
    """
    out.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    rows = tensor.detach() if tensor.dim() else tensor.detach()[None]
    step = max(1, _BYTES_AT_ONCE // max(1, rows[:1].numel() * rows.element_size()))
    for start in range(0, len(rows), step):
        # A clone has the strides that a view of bytes needs.
        plain = rows[start : start + step].cpu().clone(memory_format=torch.contiguous_format)
        out.update(plain.view(torch.uint8).numpy().data)
