"""SINE: incremental sine waves, a regression stream that every replica draws for itself."""

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
    """Incremental sine waves (appendix B.1): fifty tasks, each a wave a little unlike the last.

    A row's input is (amplitude, phase, frequency), shape (3,); its target the wave at `outputs`
    times, evenly spaced over 0 .. 0.01 s: amplitude * sin(2 pi frequency t / 0.01 + phase).
    Amplitude is in [0.1, 5], phase in [0, pi], as printed. The paper gives no range of frequency;
    0.5 to 2 cycles in the window (50 to 200 Hz) make all three inputs of one size. It lists eleven
    times and a hundred outputs; we take a hundred.

    Every replica draws its own waves: the first task uniformly from the ranges; each next one moves
    every parameter by a uniform step of at most `increment` of its range, reflected at the ends.
    The rows of a task differ from its wave by at most `jitter` of each range, reflected likewise.
    With jitter 0 (the literal reading) they are all the same, and a test row equals a training row.

    rows: rows of a task; 534 leave 320 to train, the paper's forty minibatches of eight.
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

        moves = keys.uniform(key, (3,), lane=0).to(torch.float64)
        path = torch.cat([moves[:, :1], self.increment * (2 * moves[:, 1:] - 1)], 1).cumsum(1)
        wave = _reflect(path)
        spread = keys.uniform(key, (self.rows, 3), lane=1).to(torch.float64)
        share = _reflect(wave[:, :, None] + self.jitter * (2 * spread - 1))
        x = (low + span * share).to(torch.float32).flatten(0, 2)

        replicas, each = len(seed), tasks * self.rows
        task = torch.arange(tasks).repeat_interleave(self.rows).expand(replicas, each)
        return Stream(
            name="sine",
            kind="regression",
            x=x,
            y=_curves(x, self.outputs),
            row=torch.arange(replicas * each).view(replicas, each),
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
