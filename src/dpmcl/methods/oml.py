"""OML (appendix B.5): an inner loop on the new task, an outer loop on all, with one network."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dpmcl.core.model import Model
from dpmcl.data.sampling import Draw
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Batches, Phase, State
from dpmcl.methods._two_loop import TwoLoop


@dataclass(frozen=True, kw_only=True)
class OML(TwoLoop):
    """Online meta learning, after FTML (Finn et al., 2019): every loop changes all of theta.

    Source: appendix B.5, algorithm "Our OML implementation"; tested on theta. The method usually
    called OML is `cml`. The readings (see `TwoLoop` for the rows of each loop):

    - "box": N_meta updates of theta on D_PN, then N_grad of theta on D_N;
    - "box-literal": N_meta updates of a copy of theta on D_PN give theta~, then N_grad of theta on
      D_N with the gradient of the cost at theta~;
    - "text": N_grad updates of theta on D_N, then N_meta of theta on validation rows;
    - "nested": inner updates and outer steps both change all of theta;
    - "original": follow the meta leader (FTML; Finn et al., 2019). Each update picks one of the
      tasks seen at random, makes theta~ by `inner` updates on its training rows, and makes a step
      of theta with the gradient of the cost on its validation rows, through the inner updates
      (order 2). Before an evaluation a copy of theta is adapted by `inner` updates on the newest
      task, and predicts for all tasks. All rows seen are kept, whatever `memory` is. FTML makes
      updates until an error is reached; here there are `updates` per task.

    "text" is the default: on MNIST it comes nearest to the paper's row
    (`docs/reading-the-paper.md`).

    All updates of theta share one optimiser state; theta~ starts from a new one.
    """

    meta_parts = ("representation", "prediction")
    grad_parts = ("representation", "prediction")
    inner_parts = ("representation", "prediction")
    outer_parts = ("representation", "prediction")

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        if self.reading != "original":
            return super().phases(model, task)
        draws = {
            "new": Draw("all", self.batch, block=self.inner, of_one="task"),
            "seen": Draw("all", self.batch, split="validation", of_one="task"),
        }
        return [self._nested_phase(model, "meta", self.updates_of(task), draws)]

    @property
    def trains_on_validation(self) -> bool:
        return self.reading == "original" or super().trains_on_validation

    def evaluation_phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        if self.reading != "original":
            return super().evaluation_phases(model, task)

        def adapt(state: State, batches: Batches, key: Tensor) -> State:
            theta = self._adapt(model, state.theta, batches["new"], key, rule=self._inner_rule)
            return state._replace(theta=theta)

        draws = {"new": Draw("new", self.batch, block=self.inner)}
        return [Phase("adapt", 1, draws, adapt, self.inner)]


plugin = OML
