"""Experience replay (appendix B.5): train on batches from all tasks seen, with the new one."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dpmcl.core.gradients import gradient
from dpmcl.core.model import Model
from dpmcl.data.sampling import Draw
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Batches, Method, Phase, State


@dataclass(frozen=True, kw_only=True)
class ER(Method):
    """Experience replay, the paper's ER: one batch from a memory of new and old rows.

    D_N is appended to D_PN; then N updates, each one step of theta on J_PN(b_PN), with b_PN drawn
    from D_PN. Source: appendix B.5, algorithm "Experience Replay".

    The usual ER, a batch of the new task joined with one from the memory, is `replay`.
    """

    stores = "before"

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        def update(state: State, batches: Batches, key: Tensor) -> State:
            b_PN = batches["replay"]
            grads, J_PN = gradient(model.cost)(state.theta, b_PN, key[0])
            return self.descend(state, grads, J_PN)

        draws = {"replay": Draw("memory", self.batch)}
        return [Phase("replay", self.updates_of(task), draws, update)]


plugin = ER
