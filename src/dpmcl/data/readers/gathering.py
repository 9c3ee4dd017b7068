"""Array that is filled row by row with numbers or images, and may be larger than memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmcl.data.pools import empty_pool
from dpmcl.exceptions import DataError


class Gathering:
    """Array that is filled row by row; the first row decides its shape and type.

    Attributes:
        array: All rows, in memory, or in a temporary file if memory is too small
            (`pools.empty_pool`).

    Args:
        rows: Largest number of rows.
        name: Function that returns the name of a row in errors.
        way_out: What the user can do if rows differ, for errors.
    """

    def __init__(self, rows: int, name: Callable[[int], str], way_out: str) -> None:
        self._rows, self._name, self._way_out = rows, name, way_out
        self._first = -1
        self.array: NDArray[Any] = np.empty(0)
        self._shape: tuple[int, ...] = ()

    def put(self, row: int, values: NDArray[Any]) -> None:
        """Store a row.

        Args:
            row: Number of the row.
            values: Values of the row. A single number becomes an array of shape (1,).

        Raises:
            DataError: The shape or type differs from that of the row that was stored first.
        """
        if self._first < 0:
            self._first, self._shape = row, values.shape
            self.array = empty_pool((self._rows, *(values.shape or (1,))), values.dtype)
        if values.shape != self._shape:
            raise self._mismatch(row, "shape", self._shape, values.shape)
        new, stored = values.dtype, self.array.dtype
        if new != stored and not (new.kind == stored.kind == "f" and np.can_cast(new, stored)):
            raise self._mismatch(row, "type", stored, new)
        self.array[row] = values

    def put_image(self, row: int, pixels: NDArray[np.uint8]) -> None:
        """Store an image as a row. If both grey and RGB images are stored, all become RGB.

        Args:
            row: Number of the row.
            pixels: Image, uint8 (channels, height, width).

        Raises:
            DataError: The size differs from that of the images before.
        """
        if self._first >= 0 and {self._shape[0], len(pixels)} == {1, 3}:
            if len(pixels) == 1:
                pixels = np.repeat(pixels, 3, 0)
            elif self._shape[1:] == pixels.shape[1:]:
                grey, self._shape = self.array, pixels.shape
                self.array = empty_pool((self._rows, *self._shape), grey.dtype)
                self.array[:] = grey
        self.put(row, pixels)

    def _mismatch(self, row: int, what: str, first: Any, new: Any) -> DataError:
        return DataError(
            f"Inputs must all have one {what}; {self._name(self._first)} has {first} and "
            f"{self._name(row)} {new}; {self._way_out}."
        )
