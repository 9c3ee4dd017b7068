"""Experience replay (appendix B.5): train on batches from all tasks seen, with the new one."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpmcl.core.model import Model
from dpmcl.data.sampling import Draw
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Method, Phase


@dataclass(frozen=True, kw_only=True)
class ER(Method):
    """Experience replay, the paper's ER: one batch from a memory of new and old rows.

    D_N is appended to D_PN; then N updates, each one step of theta on J_PN(b_PN), with b_PN drawn
    from D_PN. Source: appendix B.5, algorithm "Experience Replay".

    The usual ER, a batch of the new task joined with one from the memory, is `replay`.
    """

    stores = "before"

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        draws = {"replay": Draw("memory", self.batch)}
        return [Phase("replay", self.updates_of(task), draws, self.step_on(model, "replay"))]


plugin = ER
