"""The state of a run, which is the content of a checkpoint."""

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
    """Position in a run: the next update, in its phase and task, all counted from 0.

    (task, 0, 0) stands for a task that has not begun.
    """

    task: NonNegative = 0
    phase: NonNegative = 0
    update: NonNegative = 0


@dataclass(frozen=True, eq=False)
class RunState:
    """State of a run: what changes while a method is trained for a group of replicas.

    Attributes:
        position: The next update.
        replicas: Parameters, optimiser state, running statistics and further state of the method;
            each tensor has a leading replica dimension.
        memories: D_P, and a reservoir of validation rows for methods that train on them.
        work: Work of each replica so far.
        diverged: Position at which a replica was frozen, by index of the replica.
        values: Arrays of the observers by name, such as errors and readings; most have a leading
            replica dimension.
    """

    position: Position
    replicas: State
    memories: Memories
    work: Work = field(default_factory=Work)
    diverged: Mapping[int, Divergence] = field(default_factory=dict)
    values: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def alive(self) -> Tensor:
        """Return the mask of the replicas that are not frozen, bool (replicas,)."""
        first = leaves(self.replicas.theta)[0]
        alive = torch.ones(len(first), dtype=torch.bool, device=first.device)
        alive[list(self.diverged)] = False
        return alive
