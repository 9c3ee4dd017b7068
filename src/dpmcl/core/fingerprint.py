"""Hash tensors slice by slice, since a tensor may be mapped from a file larger than memory."""

from typing import Any

import torch
from torch import Tensor

_BYTES_AT_ONCE = 1 << 26


def add(out: Any, tensor: Tensor) -> None:
    """Add the type, shape and bytes of a tensor to a hash.

    Args:
        out: Hash object of hashlib.
        tensor: Tensor on any device.
    """
    out.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    rows = tensor.detach() if tensor.dim() else tensor.detach()[None]
    step = max(1, _BYTES_AT_ONCE // max(1, rows[:1].numel() * rows.element_size()))
    for start in range(0, len(rows), step):
        # A view as bytes needs contiguous memory.
        plain = rows[start : start + step].cpu().clone(memory_format=torch.contiguous_format)
        out.update(plain.view(torch.uint8).numpy().data)
