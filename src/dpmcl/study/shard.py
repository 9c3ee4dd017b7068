"""A share of a study's jobs, for one of several machines."""

import itertools
import re
from typing import Self

from dpmcl.exceptions import SpecError, shown


class Shard:
    """Every nth job of several runs, whatever their folders hold.

    Args:
        first: The first job, from 1.
        every: n.
    """

    def __init__(self, first: int = 1, every: int = 1) -> None:
        self.first, self.every = first, every
        self._jobs = itertools.count()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the shard of a text.

        Args:
            text: As in "3/40", the third of forty.

        Raises:
            SpecError: It is none.
        """
        match = re.fullmatch(r"([1-9]\d{0,6})/([1-9]\d{0,6})", text)
        if match is None or int(match[1]) > int(match[2]):
            raise SpecError(f"A shard is I/N with I from 1 to N, as in 3/40, got {shown(text)}.")
        return cls(int(match[1]), int(match[2]))

    def takes(self) -> bool:
        """Return whether the next job, in the order of the runs, is one of the shard's."""
        return next(self._jobs) % self.every == self.first - 1
