"""DER++: DER, with the cost of old rows added."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dpmcl.core.model import Model, Theta
from dpmcl.core.settings import NonNegativeFloat
from dpmcl.data.sampling import Draw
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Batches, Phase, Update
from dpmcl.methods.der import DER


@dataclass(frozen=True, kw_only=True)
class DERpp(DER):
    """DER++: old rows keep their outputs, and a second batch of old rows is trained on its targets.

    `der` with beta J(b'_P) added to the cost of each step, where b'_P is a second, independent
    batch from D_P. With alpha = 0 the cost is J(b_N) + beta J(b'_P), a sum of two means: for
    beta = 1 the step is up to twice that of `replay`. Source and deviations are those of `der`.
    """

    beta: NonNegativeFloat = 0.5

    def rehearse(
        self, task: TaskInfo, update: Update, *, keys: int = 1, **draws: Draw
    ) -> Sequence[Phase]:
        again = Draw("memory", self.replayed or self.batch)
        return super().rehearse(task, update, keys=keys, again=again, **draws)

    def _further_cost(
        self, model: Model, theta: Theta, batches: Batches, key: Tensor
    ) -> Tensor | float:
        return self.beta * model.cost(theta, batches["again"], key)


plugin = DERpp
