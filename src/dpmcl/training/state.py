"""The state of a run: exactly what a checkpoint holds."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpmcl.core.gradients import Work
from dpmcl.core.memory import Memories
from dpmcl.core.settings import NonNegative
from dpmcl.core.tree import leaves
from dpmcl.methods._method import State
from dpmcl.results.record import Divergence


class Position(NamedTuple):
    """The next update of a run: `update` of a phase of a task, all counted from 0.

    (task, 0, 0) is a task that has not begun.
    """

    task: NonNegative = 0
    phase: NonNegative = 0
    update: NonNegative = 0


@dataclass(frozen=True, eq=False)
class RunState:
    """State of a run: what changes while a method is trained for a group of replicas.

    Attributes:
        position: The next update.
        replicas: Parameters, optimiser state, running statistics and what else the method keeps;
            each tensor has a leading replica dimension.
        memories: D_P, and a reservoir of validation rows for the methods that train on them.
        work: Spent so far for each replica.
        diverged: By index of the replica, where it was frozen.
        values: Arrays of the observers by name, replicas first: error tensors, readings.
    """

    position: Position
    replicas: State
    memories: Memories
    work: Work = field(default_factory=Work)
    diverged: Mapping[int, Divergence] = field(default_factory=dict)
    values: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def alive(self) -> Tensor:
        """Return which replicas have not been frozen: bool (replicas,)."""
        first = leaves(self.replicas.theta)[0]
        alive = torch.ones(len(first), dtype=torch.bool, device=first.device)
        alive[list(self.diverged)] = False
        return alive
