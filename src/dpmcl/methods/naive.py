"""Naive (appendix B.5): train on the new task alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpmcl.core.model import Model
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Method, Phase


@dataclass(frozen=True, kw_only=True)
class Naive(Method):
    """Trains on the new task alone, and forgets.

    N updates per task, each one step of theta on J_N(b_N), with b_N drawn from the new task's
    training rows. No memory. Source: appendix B.5, algorithm "Naive".
    """

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        draws = {"new": self.new_rows()}
        return [Phase("train", self.updates_of(task), draws, self.step_on(model, "new"))]


plugin = Naive
