"""SINE: incremental sine waves, a regression stream that each replica draws separately."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import annotated_types as at
import torch
from torch import Tensor

from dpmcl.core import keys
from dpmcl.core.settings import Positive
from dpmcl.data.stream import Stream
from dpmcl.streams._settings import StreamSettings

RANGES = torch.tensor([[0.1, 5.0], [0.0, math.pi], [0.5, 2.0]], dtype=torch.float64)
"""Ranges of amplitude, phase (radians) and frequency (cycles in the window)."""


@dataclass(frozen=True, kw_only=True)
class Sine(StreamSettings):
    """Incremental sine waves (appendix B.1): fifty tasks, each with a slightly different wave.

    The input of a row is (amplitude, phase, frequency), shape (3,). Its target is the wave,
    amplitude * sin(2 pi frequency t / 0.01 + phase), at `outputs` times t, evenly spaced over
    0 .. 0.01 s. Amplitude is in [0.1, 5] and phase in [0, pi], as printed. The paper gives no range
    of frequency; 0.5 to 2 cycles in the window (50 to 200 Hz) give all three inputs similar sizes.
    It lists eleven times and a hundred outputs; we use a hundred times.

    Each replica draws its own waves. The first task's parameters are uniform in their ranges. From
    task to task, each parameter moves by a uniform step of at most `increment` of its range, and is
    reflected at the ends of the range. The rows of a task differ from its wave by at most `jitter`
    of each range, with the same reflection. With jitter 0 (the literal reading) all rows of a task
    are the same, and test rows equal training rows.

    Attributes:
        rows: Number of rows in a task. 534 gives 320 training rows, the paper's forty minibatches
            of eight.
        outputs: Number of times at which a wave is sampled.
        increment: Largest step of a parameter between tasks, as a share of its range.
        jitter: Largest deviation of a row from its task's wave, as a share of each range.
    """

    network: ClassVar[str] = "sinenet"

    tasks: Positive | None = 50
    rows: Annotated[int, at.Ge(3)] = 534
    outputs: Positive = 100
    increment: Annotated[float, at.Ge(0), at.Le(1)] = 0.05
    jitter: Annotated[float, at.Ge(0), at.Le(1)] = 0.01

    def build(self, seeds: Sequence[int]) -> Stream:
        tasks = self.tasks or 50
        seed = torch.tensor(list(seeds), dtype=torch.int64)
        key = keys.derive(seed[:, None], keys.Purpose.STREAM, torch.arange(tasks))
        low, span = RANGES[:, 0], RANGES[:, 1] - RANGES[:, 0]

        steps = keys.uniform(key, (3,), lane=0).to(torch.float64)
        path = torch.cat([steps[:, :1], self.increment * (2 * steps[:, 1:] - 1)], 1).cumsum(1)
        wave = _reflect(path)
        spread = keys.uniform(key, (self.rows, 3), lane=1).to(torch.float64)
        share = _reflect(wave[:, :, None] + self.jitter * (2 * spread - 1))
        x = (low + span * share).to(torch.float32).flatten(0, 2)

        replicas, row_count = len(seed), tasks * self.rows
        task = torch.arange(tasks).repeat_interleave(self.rows).expand(replicas, row_count)
        return Stream(
            name="sine",
            kind="regression",
            x=x,
            y=_curves(x, self.outputs),
            row=torch.arange(replicas * row_count).view(replicas, row_count),
            task=task.contiguous(),
            tasks=tuple(f"wave {k}" for k in range(tasks)),
            classes=(),
            outputs=self.outputs,
            scenario="a wave a task, drawn by every replica",
        )


def _reflect(path: Tensor) -> Tensor:
    """Return a path folded back into [0, 1] at both ends."""
    folded = path.remainder(2)
    return torch.where(folded > 1, 2 - folded, folded)


def _curves(x: Tensor, outputs: int) -> Tensor:
    """Return the waves of parameters (n, 3) at `outputs` times, float32 (n, outputs)."""
    t = torch.linspace(0, 1, outputs)
    amplitude, phase, frequency = x[:, :1], x[:, 1:2], x[:, 2:]
    return amplitude * torch.sin(2 * math.pi * frequency * t + phase)


plugin = Sine
