"""Replay: the usual ER, with a batch of the new task joined with one from the memory."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dpmcl.core.batch import join
from dpmcl.core.gradients import gradient
from dpmcl.core.model import Model
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Batches, Phase, State
from dpmcl.methods._rehearsal import Rehearsal


@dataclass(frozen=True, kw_only=True)
class Replay(Rehearsal):
    """Replay, the usual ER (not the paper's `er`): a batch of new rows joined with one of old rows.

    N updates per task, each theta <- theta - lr grad J(b_P u b_N). The cost is one mean over the
    rows of both batches, so the step is not twice as long as on a single batch. At the first task
    D_P is empty, and b_P u b_N = b_N. Source: Chaudhry et al., *On tiny episodic memories in
    continual learning*, 2019.

    In the paper's ER one batch comes from a memory to which the new task was added first.

    Deviations: by default D_N enters D_P after the task; `enters = "during"` is the original.
    """

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        def update(state: State, batches: Batches, key: Tensor) -> State:
            b_PN = join(batches["past"], batches["new"])
            grads, J_PN = gradient(model.cost)(state.theta, b_PN, key[0])
            return self.descend(state, grads, J_PN)

        return self.rehearse(task, update)


plugin = Replay
