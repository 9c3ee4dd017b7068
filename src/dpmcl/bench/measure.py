"""Contestants in interleaved rounds: what disturbs a machine for a while disturbs all alike."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dpmcl.core.threads import threads

Progress = Callable[[int, int], None]
"""progress(done, total): timings done, and to be done, warm-up included."""

_MOST_UPDATES = 1_000_000


@dataclass(frozen=True, eq=False)
class Contestant:
    """Something that makes updates.

    run(updates): makes so many, and gives the seconds that they took. replicas: that each update
    is made for. threads: of PyTorch, while it runs. facts: what else its row of the report says.
    note(): what is to be said of it once it has run, or "". warm_up: seconds that it runs before
    it is timed, for what settles by and by. weight: how much longer than others it is timed. least:
    updates a timing.
    """

    name: str
    run: Callable[[int], float]
    replicas: int = 1
    threads: int = 1
    facts: Mapping[str, Any] = field(default_factory=dict)
    note: Callable[[], str] = str
    warm_up: float = 0.0
    weight: float = 1.0
    least: int = 1


@dataclass(frozen=True, eq=False)
class Timing:
    """What was measured of a contestant.

    updates: in each repeat. repeats: milliseconds per update and replica, one a round.
    """

    contestant: Contestant
    updates: int
    repeats: tuple[float, ...]

    @property
    def ms(self) -> float:
        """Their median."""
        return statistics.median(self.repeats)


def measure(
    contestants: Sequence[Contestant],
    repeats: int,
    seconds: float,
    progress: Progress | None = None,
) -> list[Timing]:
    """Times all contestants in turn, `repeats` rounds of that; about `seconds` for each timing.

    Before, each is warmed up once, which is where updates are captured and threads start.
    """
    total, done = len(contestants) * (1 + repeats), 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, total)

    updates = []
    for one in contestants:
        with threads(one.threads):
            wanted = one.weight * seconds
            updates.append(updates_for(one.run, wanted, one.warm_up, one.least))
        tick()
    found: list[list[float]] = [[] for _ in contestants]
    for _ in range(repeats):
        for one, count, own in zip(contestants, updates, found, strict=True):
            with threads(one.threads):
                own.append(1000 * one.run(count) / (count * one.replicas))
            tick()
    rows = zip(contestants, updates, found, strict=True)
    return [Timing(one, count, tuple(own)) for one, count, own in rows]


def updates_for(
    run: Callable[[int], float], seconds: float, warm_up: float = 0.0, least: int = 1
) -> int:
    """How many updates take about `seconds`, half of it at least; `least` if they take longer.

    warm_up: seconds after which this ends at the earliest. The last run that it makes is of so many
    updates, so that buffers have their size.
    """
    begin = time.monotonic()
    run(1)
    updates, took = least, run(least)
    while _short(took, seconds, updates) or time.monotonic() - begin < warm_up:
        if _short(took, seconds, updates):
            updates = round(updates * min(10.0, seconds / max(took, 1e-9)))
        took = run(updates)
    return updates


def _short(took: float, seconds: float, updates: int) -> bool:
    """Whether a timing of so many updates is too short."""
    return took < seconds / 2 and updates < _MOST_UPDATES


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds that some work takes, until the device has done all of it."""
    _wait(device)
    begin = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - begin


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
