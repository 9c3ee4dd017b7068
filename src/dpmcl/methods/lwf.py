"""LwF, learning without forgetting: on new rows, old outputs stay as they were before the task."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from dpmcl.core.batch import weighted_mean
from dpmcl.core.gradients import gradient
from dpmcl.core.model import Model, Theta, among
from dpmcl.core.settings import NonNegativeFloat, Rate
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Batches, Method, Phase, State


@dataclass(frozen=True, kw_only=True)
class LwF(Method):
    """LwF, learning without forgetting: on new rows the old outputs stay as before the task.

    N updates per task, each one step on J(b_N) + strength D(b_N). f' is the network after the last
    task. D is the mean over rows of -sum_c q_c log p_c, where q and p are the softmax of f'(x) / T
    and f(x) / T over the classes seen before this task; for a regression it is the mean over rows
    and outputs of the squared difference of f(x) and f'(x). At the first task D = 0. No memory, one
    copy of the weights. Source: Li and Hoiem, *Learning without forgetting*, 2016 (their lambda_o
    is `strength`, and their T is 2, the default `temperature`).

    Deviations: there is one head for all tasks, so J(b_N) is over all classes. f'(x) is computed in
    each update, without dropout and with the current running statistics. There is no first stage
    that trains the new outputs alone.
    """

    strength: NonNegativeFloat = 1.0
    temperature: Rate = 2.0

    def start(self, theta: Theta, task: TaskInfo) -> State:
        extra = {"teacher": theta, "seen": torch.zeros_like(task.seen)}
        return super().start(theta, task)._replace(extra=extra)

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        def update(state: State, batches: Batches, key: Tensor) -> State:
            b_N, seen = batches["new"], state.extra["seen"]
            old_outputs = model.holding(state.buffers).predict(state.extra["teacher"], b_N.x)

            def cost(theta: Theta) -> Tensor:
                outputs = model.predict(theta, b_N.x, key[0], w=b_N.w)
                if model.kind == "regression":
                    distances = (outputs - old_outputs).square().mean(1)
                else:
                    q, p = (among(f / self.temperature, seen) for f in (old_outputs, outputs))
                    distances = functional.cross_entropy(p, torch.softmax(q, 1), reduction="none")
                D = self.strength * weighted_mean(distances, b_N.w) * seen.any()
                J: Tensor = weighted_mean(model.losses(outputs, b_N.y), b_N.w) + D
                return J

            grads, J = gradient(cost)(state.theta)
            return self.descend(state, grads, J)

        return [Phase("train", self.updates_of(task), {"new": self.new_rows()}, update)]

    def end_of_task(self, state: State, model: Model, task: TaskInfo) -> State:
        return state._replace(extra={"teacher": state.theta, "seen": task.seen})


plugin = LwF
