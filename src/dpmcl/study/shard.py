"""Divide the jobs of a study among several machines."""

import itertools
import re
from collections.abc import Iterator

from dpmcl.exceptions import SpecError, shown

Shard = Iterator[bool]
"""Yields for each job, in the order of the runs, True if it belongs to the shard.

All jobs count, also those whose results a folder has already."""


def shard_of(text: str) -> Shard:
    """Return the shard that a text names.

    Args:
        text: As in "3/40": every fortieth job, starting with the third.

    Raises:
        SpecError: The text does not have that form.
    """
    match = re.fullmatch(r"([1-9]\d{0,6})/([1-9]\d{0,6})", text)
    if match is None or int(match[1]) > int(match[2]):
        raise SpecError(f"A shard is I/N with I from 1 to N, as in 3/40, got {shown(text)}.")
    first, count = int(match[1]), int(match[2])
    return (number % count == first - 1 for number in itertools.count())
