"""EWC, elastic weight consolidation: a quadratic penalty on weights that old tasks need."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dpmcl.core.gradients import gradient
from dpmcl.core.model import Model, Theta
from dpmcl.core.settings import NonNegativeFloat, Positive, UnitInterval
from dpmcl.core.tree import leaves, tree_map
from dpmcl.data.sampling import Draw
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._fisher import Targets, squared_gradients
from dpmcl.methods._method import Batches, Method, Phase, State


@dataclass(frozen=True, kw_only=True)
class EWC(Method):
    """EWC, elastic weight consolidation: a quadratic penalty on weights that old tasks need.

    N updates per task, each one step on J(b_N) + strength/2 sum_k sum F_k (theta - theta_k)^2,
    where theta_k is theta after task k, and F_k is the diagonal of its Fisher information. After
    the updates of task k, F_k is the mean over rows of D_N of the squared gradient of each row's
    loss: the gradient is squared for each row, before the mean. No memory. Source: Kirkpatrick et
    al., 2017.

    fisher: "sampled", with targets drawn from the model's predictions (for a regression, with the
    variance that its cost implies), which makes F_k an unbiased estimate, or "empirical", with the
    targets of the rows. fisher_rows: number of rows for F_k, rounded up to whole batches; None for
    all rows of the task.

    anchors: "each" keeps the penalty of every task, as in the original (the sum is one quadratic
    form, so it takes no more memory); "last" is online EWC (Schwarz et al., 2018):
    F <- decay F + F_k, with one anchor, the last theta_k. decay has no effect with "each".

    The penalty is stiff: plain gradient descent diverges if lr strength F exceeds 2.

    Deviations: an optimiser that needs a cost gets J(b_N), without the penalty.
    """

    strength: NonNegativeFloat = 10.0
    fisher: Targets = "sampled"
    fisher_rows: Positive | None = 200
    anchors: Literal["each", "last"] = "each"
    decay: UnitInterval = 1.0

    def start(self, theta: Theta, task: TaskInfo) -> State:
        zero = tree_map(torch.zeros_like, theta)
        rows = leaves(theta)[0].new_zeros(())
        extra = {"F": zero, "F_theta": zero, "gathered": zero, "rows": rows}
        return super().start(theta, task)._replace(extra=extra)

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        def train(state: State, batches: Batches, key: Tensor) -> State:
            grads, J_N = gradient(model.cost)(state.theta, batches["new"], key[0])
            grads = tree_map(
                lambda g, p, F, F_theta: g + self.strength * (F * p - F_theta),
                *(grads, state.theta, state.extra["F"], state.extra["F_theta"]),
            )
            return self.descend(state, grads, J_N)

        def gather(state: State, batches: Batches, key: Tensor) -> State:
            rows, held = batches["rows"], state.extra
            model_now = model.holding(state.buffers)
            squares = squared_gradients(model_now, state.theta, rows, self.fisher, key=key[0])
            gathered = tree_map(torch.add, held["gathered"], squares)
            extra = {**held, "gathered": gathered, "rows": held["rows"] + rows.w.sum()}
            return state._replace(extra=extra)

        rows = min(task.rows, self.fisher_rows or task.rows)
        draws = {"rows": Draw("new", self.batch, replace=False, once=True)}
        return [
            Phase("train", self.updates_of(task), {"new": self.new_rows()}, train),
            Phase("fisher", -(-rows // self.batch), draws, gather, trains=False),
        ]

    def end_of_task(self, state: State, model: Model, task: TaskInfo) -> State:
        held, theta = state.extra, state.theta
        new = tree_map(lambda g: g / held["rows"].clamp(min=1), held["gathered"])
        decay = 1.0 if self.anchors == "each" else self.decay
        F = tree_map(lambda a, b: decay * a + b, held["F"], new)
        if self.anchors == "each":
            F_theta = tree_map(lambda a, b, p: a + b * p, held["F_theta"], new, theta)
        else:
            F_theta = tree_map(torch.mul, F, theta)
        emptied = {name: tree_map(torch.zeros_like, held[name]) for name in ("gathered", "rows")}
        return state._replace(extra={"F": F, "F_theta": F_theta, **emptied})


plugin = EWC
