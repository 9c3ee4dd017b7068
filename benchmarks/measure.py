"""Time contestants in interleaved rounds, so that a disturbance of the machine affects all."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dpmcl.core.threads import threads

_MOST_UPDATES = 1_000_000


@dataclass(frozen=True, eq=False)
class Contestant:
    """An implementation of updates that is timed.

    Attributes:
        name: Name of its row in the report.
        run: Called as run(updates); makes the updates and returns the seconds that they took.
        replicas: Number of replicas in each update.
        threads: Number of PyTorch's threads while it runs.
        updates: Number of updates in a timing; None for as many as fill the time of a timing.
        facts: Further columns of its row.
    """

    name: str
    run: Callable[[int], float]
    replicas: int = 1
    threads: int = 1
    updates: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Timing:
    """Number of updates in a repeat, and milliseconds per update and replica in each repeat."""

    contestant: Contestant
    updates: int
    repeats: tuple[float, ...]

    @property
    def ms(self) -> float:
        """Median of the repeats."""
        return statistics.median(self.repeats)


def measure(contestants: Sequence[Contestant], repeats: int, seconds: float) -> list[Timing]:
    """Time all contestants in turn, after a warm-up of each in which updates are traced.

    Args:
        contestants: Contestants to time.
        repeats: Number of rounds.
        seconds: Approximate time of one timing.

    Returns:
        One timing for each contestant, in their order.
    """
    updates = []
    for contestant in contestants:
        with threads(contestant.threads):
            updates.append(contestant.updates or updates_for(contestant.run, seconds))
    times: list[list[float]] = [[] for _ in contestants]
    for _ in range(repeats):
        for contestant, count, taken in zip(contestants, updates, times, strict=True):
            with threads(contestant.threads):
                taken.append(1000 * contestant.run(count) / (count * contestant.replicas))
    rows = zip(contestants, updates, times, strict=True)
    return [Timing(contestant, count, tuple(taken)) for contestant, count, taken in rows]


def updates_for(run: Callable[[int], float], seconds: float) -> int:
    """Return the number of updates that take about `seconds`, at least half of it; at least 1.

    The last run makes that many updates, so that buffers already have the right size.
    """
    run(1)
    updates, taken = 1, run(1)
    while taken < seconds / 2 and updates < _MOST_UPDATES:
        updates = round(updates * min(10.0, seconds / max(taken, 1e-9)))
        taken = run(updates)
    return updates


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds until the device has finished `work`."""
    _wait(device)
    begin = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - begin


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
