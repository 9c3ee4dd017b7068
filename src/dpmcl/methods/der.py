"""DER, dark experience replay: old rows keep the outputs that they had when they were stored."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dpmcl.core.batch import Batch, weighted_mean
from dpmcl.core.gradients import gradient
from dpmcl.core.memory import Notes
from dpmcl.core.model import Model, Theta
from dpmcl.core.settings import NonNegativeFloat
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Batches, Phase, State
from dpmcl.methods._rehearsal import Rehearsal


@dataclass(frozen=True, kw_only=True)
class DER(Rehearsal):
    """DER, dark experience replay: old rows keep the outputs that they were stored with.

    D_P holds rows and outputs z = f(x) (logits, or values of a regression). N updates per task,
    each one step on J(b_N) + alpha D(b_P), where D is the mean over rows and outputs of
    (f(x) - z)^2. Source: Buzzega et al., *Dark experience for general continual learning: a strong,
    simple baseline*, 2020.

    By default rows enter D_P while their task is learned, with the outputs before the update that
    drew them, so the stored outputs come from different times of training, as in the original.

    compared: "all" outputs, as in the original, or "seen", the outputs of the classes seen up to
    the row's task; the others were an untrained part of the head when the row was stored.

    Deviations: D is a mean over outputs, as in the authors' code, and alpha refers to this mean;
    their paper prints the squared norm. Outputs are stored without dropout, and without
    augmentation. While D_P is empty, D is 0.
    """

    enters: Literal["after", "during"] = "during"
    alpha: NonNegativeFloat = 0.5
    compared: Literal["all", "seen"] = "all"

    def notes(self, model: Model, state: State, batch: Batch) -> Notes:
        return {"outputs": model.predict(state.theta, batch.x)}

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        seen = _seen_outputs(task) if self.compared == "seen" else None

        def update(state: State, batches: Batches, key: Tensor) -> State:
            b_P = batches["past"]

            def cost(theta: Theta) -> Tensor:
                outputs = model.predict(theta, b_P.x, key[0], w=b_P.w)
                distance = (outputs - b_P.notes["outputs"]).square()
                if seen is None:
                    row_distances = model.of_classes(distance).flatten(1).mean(1)
                else:
                    counts = seen[b_P.task].to(distance.dtype)
                    row_distances = (distance * counts).sum(1) / counts.sum(1)
                J = model.cost(theta, batches["new"], key[0])
                J = J + self.alpha * weighted_mean(row_distances, b_P.w)
                return J + self._further_cost(model, theta, batches, key[0])

            grads, J = gradient(cost)(state.theta)
            return self.descend(state, grads, J)

        return self.rehearse(task, update)

    def _further_cost(
        self, model: Model, theta: Theta, batches: Batches, key: Tensor
    ) -> Tensor | float:
        """Return the term that DER++ adds to the cost."""
        return 0.0


def _seen_outputs(task: TaskInfo) -> Tensor:
    """Return the mask of the outputs of classes seen up to each task, bool (tasks, outputs)."""
    shape, device = (task.tasks, task.outputs), task.seen.device
    if task.kind == "regression":
        return torch.ones(shape, dtype=torch.bool, device=device)
    seen = torch.zeros(shape, dtype=torch.bool, device=device)
    for number, classes in enumerate(task.classes):
        seen[number:, list(classes)] = True
    return seen


plugin = DER
