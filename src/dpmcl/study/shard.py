"""A share of a study's jobs, for one of several machines."""

import itertools
import re
from collections.abc import Iterator

from dpmcl.exceptions import SpecError, shown

Shard = Iterator[bool]
"""Whether the next job, in the order of the runs, is one of the shard's, whatever folders hold."""


def shard_of(text: str) -> Shard:
    """Return every nth job of several runs.

    Args:
        text: As in "3/40", every fortieth job from the third.

    Raises:
        SpecError: It is no shard.
    """
    match = re.fullmatch(r"([1-9]\d{0,6})/([1-9]\d{0,6})", text)
    if match is None or int(match[1]) > int(match[2]):
        raise SpecError(f"A shard is I/N with I from 1 to N, as in 3/40, got {shown(text)}.")
    first, every = int(match[1]), int(match[2])
    return (number % every == first - 1 for number in itertools.count())
