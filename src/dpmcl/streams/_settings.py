"""The contract of a stream: settings that build one, from labelled data or otherwise."""

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
    """Settings of every stream; each adds to them.

    Attributes:
        tasks: How many tasks from the start of the stream, None for all.
        split: Shares of a task's rows that train, validate and test.
    """

    network: ClassVar[str] = "mlp"
    """The network that a spec without one gets."""

    places: ClassVar[tuple[str, ...]] = ()
    """Settings that say where files are: they move no numbers, so runs in a folder may differ."""

    suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the files that it reads, by which the command line knows them."""

    inside: ClassVar[tuple[str, ...]] = ()
    """Names of files that a folder has which it reads."""

    shared: ClassVar[bool] = False
    """Whether all replicas see the same rows; a run folder is then kept to those data."""

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
        """Return the stream, its data read or drawn.

        Args:
            seeds: One for each replica.

        Raises:
            DataError: The data cannot be read or used.
        """


@dataclass(frozen=True, kw_only=True)
class LabelledSettings(ScenarioSettings, StreamSettings):
    """Settings of a stream that reads labelled data, of which any scenario makes tasks."""

    shared: ClassVar[bool] = True

    @abstractmethod
    def read(self) -> Labelled:
        """Return the data.

        Raises:
            DataError: They cannot be read or used.
        """

    def build(self, seeds: Sequence[int]) -> Stream:
        return Stream.of(self.read(), self)
