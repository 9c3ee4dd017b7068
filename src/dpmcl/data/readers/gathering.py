"""Gather rows of numbers or images in one array, which may be larger than memory."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpmcl.data.pools import empty_pool
from dpmcl.exceptions import DataError


class Gathering:
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

    def put(self, at: int, values: NDArray[Any]) -> None:
        """Store a row.

        Args:
            at: Number of the row.
            values: Its values. A single number gets a dimension.

        Raises:
            DataError: They are of another shape or type than those of the row that came first.
        """
        if self._first < 0:
            self._first, self._shape = at, values.shape
            self._array = empty_pool((self._rows, *(values.shape or (1,))), values.dtype)
        if values.shape != self._shape:
            raise self._odd(at, "shape", self._shape, values.shape)
        here, kept = values.dtype, self._array.dtype
        if here != kept and not (here.kind == kept.kind == "f" and np.can_cast(here, kept)):
            raise self._odd(at, "type", kept, here)
        self._array[at] = values
        self._filled[at] = True

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
        self.put(at, pixels)

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
