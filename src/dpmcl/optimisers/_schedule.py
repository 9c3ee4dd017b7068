"""Schedules of the learning rate over the updates of a task, or of the run."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from dpmcl import plugins
from dpmcl.core.settings import Positive, Rate, Settings, UnitInterval
from dpmcl.exceptions import unknown


@dataclass(frozen=True, kw_only=True)
class Schedule(Settings, ABC):
    """A factor of the learning rate for each update.

    Args:
        over: "task" to start anew with each task, "run" for one schedule over all tasks.
    """

    over: Literal["task", "run"] = "task"

    @abstractmethod
    def factor(self, update: Tensor, updates: Tensor) -> Tensor:
        """Return the factor of lr, a float64 scalar.

        Args:
            update: Number of updates already made, int64 ().
            updates: Number of all updates of the task or of the run, int64 ().
        """


@dataclass(frozen=True, kw_only=True)
class Cosine(Schedule):
    """Cosine schedule from lr to `least` times lr (CosineAnnealingLR in PyTorch)."""

    least: UnitInterval = 0.0

    def factor(self, update: Tensor, updates: Tensor) -> Tensor:
        angle = math.pi * update.to(torch.float64) / updates.clamp(min=1)
        return self.least + (1 - self.least) * (1 + angle.cos()) / 2


@dataclass(frozen=True, kw_only=True)
class Step(Schedule):
    """Schedule that multiplies lr by `by` after every `every` updates (StepLR in PyTorch)."""

    every: Positive
    by: Rate = 0.1

    def factor(self, update: Tensor, updates: Tensor) -> Tensor:
        return torch.pow(self.by, (update // self.every).to(torch.float64))


SCHEDULES: Mapping[str, type[Schedule]] = {"cosine": Cosine, "step": Step}


def build_schedule(setting: str | Mapping[str, Any]) -> Schedule | None:
    """Return the schedule of a setting, or None for "constant".

    Args:
        setting: Name of a schedule, or a table of a name and its options.

    Raises:
        SpecError: There is no such schedule, or an option breaks a rule.

    >>> build_schedule({"name": "step", "every": 100})
    Step(over='task', every=100, by=0.1)
    """
    name, options = plugins.name_and_options("schedule", setting)
    if name == "constant" and not options:
        return None
    if name not in SCHEDULES:
        names = ["constant", *SCHEDULES]
        raise unknown("schedule", name, names, f"There are: {', '.join(names)}.")
    return SCHEDULES[name].from_table(options, f"schedule '{name}':")
