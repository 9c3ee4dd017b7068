"""MIR: replay the old rows that the next step would harm most."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpmcl.core.batch import join
from dpmcl.core.gradients import gradient
from dpmcl.core.model import Model, Theta
from dpmcl.core.settings import Positive
from dpmcl.core.tree import tree_map
from dpmcl.data.sampling import Draw
from dpmcl.data.task_info import TaskInfo
from dpmcl.exceptions import SpecError
from dpmcl.methods._method import Batches, Phase, State
from dpmcl.methods._rehearsal import Rehearsal


@dataclass(frozen=True, kw_only=True)
class MIR(Rehearsal):
    """MIR, maximally interfered retrieval: replays the old rows that the next step would harm most.

    N updates per task. Each makes a virtual step theta' on J(b_N) alone and draws `candidates` rows
    from D_P (None: five times as many as are replayed). b_P are the `replayed` candidates whose
    loss l increases most, by l(theta') - l(theta); then one step from theta on J(b_P u b_N), as in
    `replay`. Source: Aljundi et al., *Online continual learning with maximally interfered
    retrieval*, 2019 (ER-MIR).

    Deviations: the virtual step is a step of the run's optimiser from its current state; the
    original uses plain gradient descent. Candidates are drawn with replacement. Both losses of a
    row share one dropout mask. The forward passes of the candidates count as work.
    """

    candidates: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates is not None and self.candidates < (self.replayed or self.batch):
            raise SpecError(
                f"candidates must be at least the rows replayed, {self.replayed or self.batch}, "
                f"got {self.candidates}; raise it, or lower `replayed`."
            )

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        replayed = self.replayed or self.batch

        def update(state: State, batches: Batches, key: Tensor) -> State:
            b_N, rows = batches["new"], batches["past"]

            def losses(theta: Theta) -> Tensor:
                return model.losses(model.predict(theta, rows.x, key[0], w=rows.w), rows.y)

            grads, J_N = gradient(model.cost)(state.theta, b_N, key[0])
            virtual, _ = self.rule.step(state.theta, grads, state.optimiser, J_N)
            rise = torch.where(rows.w > 0, losses(virtual) - losses(state.theta), -torch.inf)
            chosen = rise.topk(replayed).indices
            b_P = tree_map(lambda leaf: leaf[chosen], rows._replace(row=(), notes={}))
            grads, J_PN = gradient(model.cost)(state.theta, join(b_P, b_N), key[0])
            return self.descend(state, grads, J_PN)

        past = Draw("memory", self.candidates or 5 * replayed)
        return self.rehearse(task, update, past=past)


plugin = MIR
