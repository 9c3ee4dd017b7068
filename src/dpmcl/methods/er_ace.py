"""ER-ACE: cross entropy over the new classes for new rows, and over all classes for old rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dpmcl.core.batch import weighted_mean
from dpmcl.core.gradients import gradient
from dpmcl.core.model import Model, Theta, among
from dpmcl.data.task_info import TaskInfo
from dpmcl.exceptions import SpecError
from dpmcl.methods._method import Batches, Phase, State
from dpmcl.methods._rehearsal import Rehearsal


@dataclass(frozen=True, kw_only=True)
class ERACE(Rehearsal):
    """ER-ACE, asymmetric cross entropy: new rows do not push down the logits of old classes.

    N updates per task, each theta <- theta - lr grad [J(b_N; C) + J(b_P)]. The softmax of J(b_N; C)
    is over the classes C alone: those of b_N, and those of no row seen so far. J(b_P) is over all
    classes. The cost is a sum of two means, so the step is up to twice that of `replay`. Source:
    Caccia et al., *New insights on reducing abrupt representation change in online continual
    learning*, 2022.

    By default the new task's rows enter D_P while it is learned, since only b_P contrasts new
    classes with old ones. If each task has one class, C is that class and the unseen ones. When
    none is left unseen, J(b_N; C) is 0 and the class is learned from b_P alone; the run warns of
    this. A learner has unseen classes only if it was given them (`classes`).

    Deviations: C is derived from the classes seen, not from the order of class numbers. Masks apply
    from the first task on, as printed; in the authors' code, from the second. Masked logits are the
    lowest number of their type, not minus infinity.
    """

    enters: Literal["after", "during"] = "during"

    def prepare(self, model: Model) -> Model:
        if model.kind == "regression":
            raise SpecError(
                "er_ace masks the classes that do not compete, and a regression has none; use "
                "'replay', or 'derpp'."
            )
        return model

    def remark(self, tasks: Sequence[TaskInfo]) -> str | None:
        for task in tasks:
            if len(task.classes[task.number]) == 1 and bool(task.seen.all()):
                return (
                    f"from task {task.number} on no unseen class is left to compete with the one "
                    "of a task, so the cost of b_N is 0 there, and b_P alone teaches it."
                )
        return None

    def start(self, theta: Theta, task: TaskInfo) -> State:
        seen = torch.zeros_like(task.seen)
        return super().start(theta, task)._replace(extra={"seen": seen})

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        def update(state: State, batches: Batches, key: Tensor) -> State:
            b_N, b_P = batches["new"], batches["past"]
            number = torch.arange(task.outputs, device=b_N.y.device)
            present = ((b_N.y[:, None] == number) & (b_N.w > 0)[:, None]).any(0)

            def cost(theta: Theta) -> Tensor:
                logits = model.predict(theta, b_N.x, key[0], w=b_N.w)
                losses = model.usual_losses(among(logits, present | ~state.extra["seen"]), b_N.y)
                return weighted_mean(losses, b_N.w) + model.cost(theta, b_P, key[0])

            grads, J = gradient(cost)(state.theta)
            seen = state.extra["seen"] | present
            return self.descend(state, grads, J)._replace(extra={"seen": seen})

        return self.rehearse(task, update)


plugin = ERACE
