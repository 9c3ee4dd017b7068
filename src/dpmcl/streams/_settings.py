"""Base classes of the settings of streams."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import annotated_types as at

from dpmcl.core.settings import Positive, Settings
from dpmcl.data.labelled import Labelled
from dpmcl.data.scenario import ScenarioSettings
from dpmcl.data.stream import Stream
from dpmcl.exceptions import SpecError

Text = Annotated[str, at.MinLen(1)]
"""A text that is not empty."""


@dataclass(frozen=True, kw_only=True)
class StreamSettings(Settings, ABC):
    """Settings that all streams have, and that build one. Each stream adds its own.

    Attributes:
        tasks: Number of tasks from the start of the stream, None for all.
        split: Shares of training, validation and test rows in each task.
    """

    network: ClassVar[str] = "mlp"
    """Network of a spec that names none."""

    places: ClassVar[tuple[str, ...]] = ()
    """Settings that only locate files. Runs in one folder may differ in them."""

    suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the files that the stream reads, by which the command line finds it."""

    inside: ClassVar[tuple[str, ...]] = ()
    """Names of files that mark a folder as one that the stream reads."""

    shared: ClassVar[bool] = False
    """Whether all replicas see the same rows. A run folder then accepts no other data."""

    tasks: Positive | None = None
    split: Annotated[tuple[float, float, float], at.Len(3, 3)] = (0.6, 0.2, 0.2)

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.split) <= 0 or abs(sum(self.split) - 1) > 1e-6:
            raise SpecError(
                f"split must be three shares above 0 that add up to 1, got {list(self.split)}."
            )

    @abstractmethod
    def build(self, seeds: Sequence[int]) -> Stream:
        """Read or draw the data, and return the stream.

        Args:
            seeds: Seed of each replica.

        Raises:
            DataError: The data cannot be read or used.
        """


@dataclass(frozen=True, kw_only=True)
class LabelledSettings(ScenarioSettings, StreamSettings):
    """Settings of a stream that reads labelled data; any scenario can make its tasks."""

    shared: ClassVar[bool] = True

    @abstractmethod
    def read(self) -> Labelled:
        """Read the data, and return them.

        Raises:
            DataError: The data cannot be read or used.
        """

    def build(self, seeds: Sequence[int]) -> Stream:
        return Stream.of(self.read(), self)
