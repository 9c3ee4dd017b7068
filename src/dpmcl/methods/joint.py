"""Joint training on all rows of all tasks seen: the bound with which methods are compared."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dpmcl.core.model import Model
from dpmcl.data.sampling import Draw
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Method, Phase


@dataclass(frozen=True, kw_only=True)
class Joint(Method):
    """Trains on all rows of all tasks seen, anew from the initial weights at each task.

    Not in the paper: it is the bound with which the other methods are compared. Each update is one
    step of theta on the cost of a batch drawn from all training rows of the tasks seen.

    Args:
        budget: "seen", N updates for each task seen so far (k N at the k-th task), so that a row
            is trained on as often as by a learner of the stream; with `passes`, passes over all
            rows seen. "task", N updates at every task.
    """

    restarts = True

    budget: Literal["seen", "task"] = "seen"

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        updates = self.updates_of(task)
        if self.budget == "seen" and self.passes is None:
            updates = self.updates * (task.number + 1)
        elif self.budget == "seen":
            updates = self.updates_of(replace(task, rows=task.rows_seen))
        draws = {"all": Draw("all", self.batch, replace=self.passes is None)}
        return [Phase("train", updates, draws, self.step_on(model, "all"))]


plugin = Joint
