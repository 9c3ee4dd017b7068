"""SI, synaptic intelligence: a penalty on weights that lowered the cost during training."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpmcl.core.gradients import gradient
from dpmcl.core.model import Model, Theta
from dpmcl.core.settings import NonNegativeFloat, Rate
from dpmcl.core.tree import tree_map
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Batches, Method, Phase, State


@dataclass(frozen=True, kw_only=True)
class SI(Method):
    """SI, synaptic intelligence: a penalty on each weight by how much it lowered the cost.

    N updates per task, each one step on J(b_N) + strength sum Omega (theta - theta~)^2, where
    theta~ is theta after the last task. Each update also sets omega <- omega - g (theta' - theta),
    with g = grad J(b_N), without the penalty, and theta' after the step. After the task
    Omega <- Omega + omega / ((theta - theta~)^2 + damping), and omega is set to 0. No memory.
    Source: Zenke et al., *Continual learning through synaptic intelligence*, 2017 (its c is
    `strength`, its xi `damping`).

    Deviations: a negative omega counts as 0, since its penalty would have no lower bound. An
    optimiser that needs a cost gets J(b_N), without the penalty.
    """

    strength: NonNegativeFloat = 0.1
    damping: Rate = 0.1

    def start(self, theta: Theta, task: TaskInfo) -> State:
        zero = tree_map(torch.zeros_like, theta)
        extra = {"Omega": zero, "omega": zero, "anchor": theta}
        return super().start(theta, task)._replace(extra=extra)

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        def update(state: State, batches: Batches, key: Tensor) -> State:
            g, J_N = gradient(model.cost)(state.theta, batches["new"], key[0])
            extra, before = state.extra, state.theta
            grads = tree_map(
                lambda g, p, anchor, Omega: g + 2 * self.strength * Omega * (p - anchor),
                *(g, before, extra["anchor"], extra["Omega"]),
            )
            after = self.descend(state, grads, J_N)
            omega = tree_map(
                lambda o, g, new, old: o - g * (new - old),
                *(extra["omega"], g, after.theta, before),
            )
            return after._replace(extra={**extra, "omega": omega})

        return [Phase("train", self.updates_of(task), {"new": self.new_rows()}, update)]

    def end_of_task(self, state: State, model: Model, task: TaskInfo) -> State:
        extra = state.extra
        Omega = tree_map(
            lambda sum_, o, p, a: sum_ + torch.relu(o) / ((p - a).square() + self.damping),
            *(extra["Omega"], extra["omega"], state.theta, extra["anchor"]),
        )
        zero = tree_map(torch.zeros_like, Omega)
        return state._replace(extra={"Omega": Omega, "omega": zero, "anchor": state.theta})


plugin = SI
