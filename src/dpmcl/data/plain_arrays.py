"""Recognise objects of PyTorch, NumPy and pandas, and make plain arrays of them."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpmcl.exceptions import DataError


def plain_array(tensor: Tensor, what: str) -> NDArray[Any]:
    """Return a tensor as an array that shares its memory if possible; bfloat16 becomes float32.

    Args:
        tensor: Any tensor.
        what: Name of the tensor in errors.

    Raises:
        DataError: The tensor is nested, sparse, quantised, on "meta", or of a type unknown to
            NumPy.
    """
    try:
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
        array: NDArray[Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        return array
    except (TypeError, RuntimeError, NotImplementedError):
        kind = str(tensor.layout if tensor.layout != torch.strided else tensor.dtype)
        where = " on device 'meta'" if tensor.is_meta else ""
        raise DataError(
            f"{what} must be a dense tensor of numbers, got one of {kind}{where}; convert it, as "
            "by to_dense() or dequantize()."
        ) from None


def unwrapped(values: Any, what: str) -> Any:
    """Return a tensor or masked array as a plain array, and other values unchanged.

    Args:
        values: Anything.
        what: Name of the values in errors.

    Raises:
        DataError: A value is masked; NumPy and PyTorch would read the number behind the mask.
    """
    if isinstance(values, Tensor):
        return plain_array(values, what)
    if not isinstance(values, np.ma.MaskedArray | list | tuple):
        return values
    rows = [values] if getattr(values, "ndim", 1) == 0 else values
    row = next((row for row, value in enumerate(rows) if np.ma.is_masked(value)), None)
    if row is not None:
        raise DataError(
            f"{what} must have all its values, and row {row} has a masked one; fill it or drop the "
            "row."
        )
    return np.asarray(values.data) if isinstance(values, np.ma.MaskedArray) else values


def is_pandas(values: Any) -> bool:
    """Return True for a DataFrame or Series of pandas, without importing it.

    Args:
        values: Anything.
    """
    return hasattr(values, "iloc")
