"""Gather rows of numbers or images in one array, which may be larger than memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmcl.data.pools import empty_pool, fill, pool_type
from dpmcl.data.rounding import float_type
from dpmcl.exceptions import DataError


class Rows:
    """Rows of one shape and type, gathered in an array that is made when the first ones come.

    It is in memory, or in a temporary file where it would not fit (`pools.empty_pool`).

    Args:
        rows: How many rows there will be at most.
        name: Returns the name of a row in errors.
        way_out: What a user can do about rows that differ.
    """

    def __init__(self, rows: int, name: Callable[[int], str], way_out: str) -> None:
        self._rows, self._name, self._way_out = rows, name, way_out
        self._filled = np.zeros(rows, dtype=bool)
        self._first = -1
        self._array: NDArray[Any] = np.empty(0)
        self._shape: tuple[int, ...] = ()
        self._dtype = np.dtype(np.float32)

    def put(self, at: int, values: NDArray[Any]) -> None:
        """Store row `at` and those that follow.

        Args:
            at: Number of the first row.
            values: (n, ...). Rows without a dimension get one.

        Raises:
            DataError: They are no real numbers, or of another shape or type than the rows before.
        """
        wanted = pool_type(values.dtype)
        if wanted is None:
            raise DataError(
                f"Inputs must be real numbers, {self._name(at)} has values of type {values.dtype}; "
                f"{self._way_out}."
            )
        if values.dtype.kind in "iu" and values.dtype.itemsize > 2:
            name = self._name(at)
            wanted = float_type(values, name[0].upper() + name[1:])
        if self._first < 0:
            self._first, self._shape, self._dtype = at, values.shape[1:], values.dtype
            self._array = empty_pool((self._rows, *(self._shape or (1,))), wanted)
        # Whole numbers of a size that float32 would round.
        widens = wanted == np.float64 and self._array.dtype == np.float32
        if widens and values.dtype == self._dtype:
            narrow, self._array = self._array, empty_pool(self._array.shape, wanted)
            self._array[:] = narrow
        if values.shape[1:] != self._shape:
            raise self._odd(at, "shape", self._shape, values.shape[1:])
        floats = wanted.kind == self._array.dtype.kind == "f"
        if values.dtype != self._dtype and not (floats and np.can_cast(wanted, self._array.dtype)):
            raise self._odd(at, "type", self._dtype, values.dtype)
        rows = self._array[at : at + len(values)]
        fill(rows, values.reshape(rows.shape))
        self._filled[at : at + len(values)] = True

    def put_image(self, at: int, pixels: NDArray[np.uint8]) -> None:
        """Store an image as row `at`. Grey images become RGB where others are.

        Args:
            at: Number of the row.
            pixels: uint8 (channels, height, width).

        Raises:
            DataError: It has another size than the images before.
        """
        if self._first >= 0 and {self._shape[0], len(pixels)} == {1, 3}:
            if len(pixels) == 1:
                pixels = np.repeat(pixels, 3, 0)
            elif self._shape[1:] == pixels.shape[1:]:
                grey, self._shape = self._array, pixels.shape
                self._array = empty_pool((self._rows, *self._shape), grey.dtype)
                self._array[:] = grey
        self.put(at, pixels[None])

    def full(self, rows: int | None = None) -> NDArray[Any]:
        """Return the array, or so many rows from its start. Raises DataError where one lacks.

        Args:
            rows: How many, from the start; None for all.
        """
        missing = np.flatnonzero(~self._filled[:rows])
        if len(missing):
            raise DataError(
                f"{self._name(int(missing[0]))} was there and is gone; leave the files as they are "
                "while they are read."
            )
        return self._array[:rows]

    def _odd(self, at: int, what: str, first: Any, here: Any) -> DataError:
        return DataError(
            f"Inputs must all have one {what}; {self._name(self._first)} has {first} and "
            f"{self._name(at)} {here}; {self._way_out}."
        )
