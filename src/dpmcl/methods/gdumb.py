"""GDumb: only stores, and trains a new network on the memory: what a memory is worth by itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpmcl.core import keys
from dpmcl.core.batch import Batch
from dpmcl.core.gradients import gradient
from dpmcl.core.memory import Memory, Notes, Offer, keep
from dpmcl.core.model import Model
from dpmcl.data.sampling import Draw
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Method, Phase, State


@dataclass(frozen=True, kw_only=True)
class GDumb(Method):
    """GDumb: a memory balanced by class, and a network trained anew on it alone.

    A greedy memory: D_N enters D_P, in which each class has as many rows as any other, as far as
    they go; a class that has its share takes no more, and gives rows up at random as shares shrink.
    Then theta starts from its initial weights, and N updates step it on J(b), b drawn from D_P;
    with `passes`, whole passes over D_P. Source: Prabhu et al., *GDumb: a simple approach that
    questions our progress in continual learning*, 2020.

    Deviations: it trains at each task, since each is evaluated, which changes no number. Rows of a
    regression are balanced by task. `memory_policy` does nothing. No cut-mix, no learning rate that
    restarts (`training.schedule` and `training.augment` are at hand), and 256 passes are
    `passes = 256`.
    """

    stores = "before"
    restarts = True

    def notes(self, model: Model, state: State, batch: Batch) -> Notes:
        return {"kind": batch.y if model.kind == "classification" else batch.task}

    def policy(self, memory_: Memory, offer: Offer, key: Tensor) -> Memory:
        # Of each class the first is kept, then of each the second, ...; held rows come first.
        capacity = len(memory_.position)
        kind = torch.cat([memory_.notes["kind"], offer.notes["kind"]])
        held = torch.arange(capacity, device=key.device) < memory_.filled
        present = torch.cat([held, offer.present])
        n = len(kind)
        late = (torch.arange(n, device=key.device) >= capacity) * 2.0**52
        score = (keys.scores(key, n) >> 11).to(torch.float64) + late
        rank = torch.argsort(torch.argsort(torch.where(present, score, torch.inf), stable=True))
        return keep(memory_, offer, _among_its_kind(kind, rank))

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        def update(state: State, batches: Mapping[str, Batch], key: Tensor) -> State:
            grads, J = gradient(model.cost)(state.theta, batches["held"], key[0])
            return self.descend(state, grads, J)

        held = replace(task, rows=min(self.memory, task.rows_seen))
        draws = {"held": Draw("memory", self.batch, replace=self.passes is None)}
        return [Phase("anew", self.updates_of(held), draws, update)]


def _among_its_kind(kind: Tensor, rank: Tensor) -> Tensor:
    """Return for each row how many of its kind have a lower rank, (n,)."""
    order = torch.argsort(kind * len(kind) + rank)
    sorted_kind = kind[order]
    first = torch.searchsorted(sorted_kind, sorted_kind)
    place = torch.arange(len(kind), device=kind.device) - first
    return torch.empty_like(place).scatter(0, order, place)


plugin = GDumb
