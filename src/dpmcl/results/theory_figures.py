"""Figures of what was watched: the terms of equation (3), and where a condition broke."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from dpmcl.exceptions import DpmclError
from dpmcl.monitor import Readings
from dpmcl.results.store import StreamInfo

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(
    readings: Mapping[str, Readings], stream: StreamInfo, what: Literal["terms", "stability"]
) -> "Figure":
    """Not yet."""
    raise DpmclError("not yet")
