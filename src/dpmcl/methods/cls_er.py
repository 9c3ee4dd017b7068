"""CLS-ER: replay that keeps outputs on old rows near those of two averages of the weights."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpmcl.core import keys
from dpmcl.core.batch import join, weighted_mean
from dpmcl.core.gradients import gradient
from dpmcl.core.model import Model, Theta
from dpmcl.core.settings import NonNegativeFloat, Share, UnitInterval
from dpmcl.core.tree import leaves, tree_map
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Batches, Phase, State
from dpmcl.methods._rehearsal import Rehearsal


@dataclass(frozen=True, kw_only=True)
class CLSER(Rehearsal):
    """CLS-ER, complementary learning systems: replay that agrees with two slower models.

    The method keeps two moving averages of theta, plastic and stable. N updates per task, each one
    step on J(b_P u b_N) + strength D(b_P), where D is the mean over rows and outputs of
    (f(x) - z)^2, and z are the outputs of the average that has the lower loss on the row. After the
    step, with probability `plastic_chance`, plastic <- a plastic + (1 - a) theta, with
    a = min(plastic_decay, 1 - 1/(t + 1)) at the t-th update of the run; the same for stable. The
    stable model is evaluated. Source: Arani et al., *Learning fast, learning slow*, 2022.

    The default strength is that of the authors' code. On MNIST they use 2, with which plain
    gradient descent with lr = 0.1 diverges here. In runs of a few hundred updates the stable model
    is the mean over the whole run, so it lags behind theta.

    Deviations: by default D_N enters D_P after the task; the original is `enters = "during"`. D is
    a mean over outputs, as in the authors' code; their paper prints the squared norm. The averages
    predict without dropout, and with the running statistics of theta.
    """

    strength: NonNegativeFloat = 0.1
    plastic_decay: Share = 0.99
    stable_decay: Share = 0.999
    plastic_chance: UnitInterval = 1.0
    stable_chance: UnitInterval = 0.9

    def start(self, theta: Theta, task: TaskInfo) -> State:
        count = torch.zeros((), dtype=torch.int64, device=leaves(theta)[0].device)
        extra = {"plastic": theta, "stable": theta, "count": count}
        return super().start(theta, task)._replace(extra=extra)

    def evaluated(self, state: State) -> State:
        return state._replace(theta=state.extra["stable"])

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        settled = ("plastic", self.plastic_decay, self.plastic_chance)
        slow = ("stable", self.stable_decay, self.stable_chance)

        def update(state: State, batches: Batches, key: Tensor) -> State:
            b_P, b_PN = batches["past"], join(batches["past"], batches["new"])
            model_now = model.holding(state.buffers)
            plastic, stable = (
                model_now.predict(state.extra[name], b_P.x) for name in ("plastic", "stable")
            )
            plastic_fits = model_now.losses(plastic, b_P.y) < model_now.losses(stable, b_P.y)
            target = torch.where(plastic_fits[:, None], plastic, stable)

            def cost(theta: Theta) -> Tensor:
                outputs = model.predict(theta, b_PN.x, key[0], w=b_PN.w)
                distance = (outputs[: len(target)] - target).square()
                row_distances = model.of_classes(distance).flatten(1).mean(1)
                J_PN = weighted_mean(model.losses(outputs, b_PN.y), b_PN.w)
                return J_PN + self.strength * weighted_mean(row_distances, b_P.w)

            grads, J = gradient(cost)(state.theta)
            after = self.descend(state, grads, J)
            count = state.extra["count"] + 1
            young = 1 - 1 / (count + 1).to(model.dtype)
            draws = keys.uniform(key[1], (2,)).unbind()
            extra = dict(state.extra)
            for (name, decay, chance), u in zip((settled, slow), draws, strict=True):
                stays = torch.where(u < chance, young.clamp(max=decay), 1.0)
                extra[name] = tree_map(
                    lambda a, b, s=stays: torch.lerp(b, a, s),
                    *(state.extra[name], after.theta),
                )
            return after._replace(extra={**extra, "count": count})

        return self.rehearse(task, update, keys=2)


plugin = CLSER
