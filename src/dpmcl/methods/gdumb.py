"""GDumb: store rows, and train a new network on the memory alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpmcl.core import keys
from dpmcl.core.batch import Batch
from dpmcl.core.memory import Memory, Notes, Offer, keep
from dpmcl.core.model import Model
from dpmcl.data.sampling import Draw
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Method, Phase, State


@dataclass(frozen=True, kw_only=True)
class GDumb(Method):
    """GDumb: a memory balanced by class, and a network trained anew on it alone.

    The memory is greedy: D_N enters D_P, in which all classes have equally many rows, as far as
    there are enough. A class that has its share takes no more rows, and loses random rows as the
    shares shrink. If there are more classes than slots, a new class takes the slot of an old one.
    Then theta starts from its initial weights, and N updates each make a step on J(b), with b drawn
    from D_P; `passes` are passes over D_P. Source: Prabhu et al., *GDumb: a simple approach that
    questions our progress in continual learning*, 2020.

    Deviations: it trains at every task, since every task is evaluated; this changes no number. Rows
    of a regression are balanced by task. `memory_policy` has no effect. There is no cut-mix and no
    learning rate that restarts (see `training.augment` and `training.schedule`), and the original's
    256 passes are `passes = 256`.
    """

    stores = "before"
    restarts = True

    def notes(self, model: Model, state: State, batch: Batch) -> Notes:
        return {"kind": batch.y if model.kind == "classification" else batch.task}

    def policy(self, memory_: Memory, offer: Offer, key: Tensor) -> Memory:
        # Keep the first row of each class, then the second of each, ...; held rows come first,
        # unless there are more classes than slots.
        capacity = len(memory_.position)
        kind = torch.cat([memory_.notes["kind"], offer.notes["kind"]])
        held = torch.arange(capacity, device=key.device) < memory_.filled
        present = torch.cat([held, offer.present])
        n = len(kind)
        after_held = (torch.arange(n, device=key.device) >= capacity) * 2.0**52
        score = (keys.scores(key, n) >> 11).to(torch.float64) + after_held
        rank = torch.argsort(torch.argsort(torch.where(present, score, torch.inf), stable=True))
        rank = _rank_in_kind(kind, rank)
        first = present & (rank == 0)
        replaces = (after_held > 0) & first & (first.sum() > capacity)
        return keep(memory_, offer, torch.where(replaces, -1, rank))

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        held = replace(task, rows=min(self.memory, task.rows_seen))
        draws = {"held": Draw("memory", self.batch, replace=self.passes is None)}
        return [Phase("anew", self.updates_of(held), draws, self.step_on(model, "held"))]


def _rank_in_kind(kind: Tensor, rank: Tensor) -> Tensor:
    """Return the rank of each row within its kind, from 0: int64 (n,)."""
    order = torch.argsort(kind * len(kind) + rank)
    sorted_kind = kind[order]
    first = torch.searchsorted(sorted_kind, sorted_kind)
    in_kind = torch.arange(len(kind), device=kind.device) - first
    return torch.empty_like(in_kind).scatter(0, order, in_kind)


plugin = GDumb
