"""DER++: DER, and the cost of old rows besides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import annotated_types as at
from torch import Tensor

from dpmcl.core.batch import Batch
from dpmcl.core.model import Model, Theta
from dpmcl.data.sampling import Draw
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Phase, Update
from dpmcl.methods.der import DER


@dataclass(frozen=True, kw_only=True)
class DERpp(DER):
    """DER++: old rows keep their outputs, and a second batch of them its targets.

    `der`, and beta J(b'_P) added to the cost of each step; b'_P is a draw of its own from D_P. With
    alpha = 0 the step is on J(b_N) + beta J(b'_P), two means: for beta = 1 twice that of `replay`.
    Source: Buzzega et al., 2020, as for `der`, and so are the deviations.
    """

    beta: Annotated[float, at.Ge(0)] = 0.5

    def rehearse(
        self, task: TaskInfo, update: Update, *, keys: int = 1, **draws: Draw
    ) -> Sequence[Phase]:
        again = Draw("memory", self.replayed or self.batch)
        return super().rehearse(task, update, keys=keys, again=again, **draws)

    def _more(
        self, model: Model, theta: Theta, batches: Mapping[str, Batch], key: Tensor
    ) -> Tensor | float:
        return self.beta * model.cost(theta, batches["again"], key)


plugin = DERpp
