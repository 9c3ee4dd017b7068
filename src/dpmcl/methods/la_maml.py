"""La-MAML: look ahead piece by piece of a batch, and learn a rate for each weight."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dpmcl.core.batch import join
from dpmcl.core.gradients import gradient
from dpmcl.core.model import Model, Theta
from dpmcl.core.settings import Positive, Rate
from dpmcl.core.tree import norm, tree_map
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Batches, Graph, Phase, State
from dpmcl.methods._rehearsal import Rehearsal


@dataclass(frozen=True, kw_only=True)
class LaMAML(Rehearsal):
    """La-MAML, look-ahead meta-learning with a learned rate for each weight.

    N updates per task. b_N is split into at most `inner` pieces of the same length, of which the
    last may be shorter; theta_0 = theta, theta_i = theta_(i-1) - a grad J(piece i) at theta_(i-1),
    where a has a rate for each weight. L is the mean of the cost of b_P u b_N over all theta_i, or
    its cost at the last theta_i (`outer = "last"`). First the rates are updated, a <- a - rate_lr
    dL/da, then theta <- theta - max(0, a) dL/dtheta. With order = 2 both derivatives go through the
    inner steps; with order = 1 the gradients of the inner steps are constants. Both derivatives are
    clipped to the norm `clip` (None: never). Source: Gupta et al., *La-MAML: look-ahead meta
    learning for continual learning*, 2020.

    By default the new task's rows enter D_P while it is learned: the inner steps fit b_N, so theta
    itself learns the new task from those of its rows that are in b_P. With `outer = "last"` it
    learns the task from little else, and at small rates not within a few hundred updates.

    Rates start at lr; rate_lr is twice lr by default (0.15 and 0.3 in the original). The step of
    theta is a step of the run's optimiser on max(0, a) / lr dL/dtheta: with "sgd" and a constant
    schedule it is the step above, and other optimisers scale it differently.

    Deviations: the original has `inner = batch`, one row in each piece. Each batch is used once
    (five times in the original; more updates have the same effect). Gradients of the inner steps
    are not clipped. `outer = "each"` is the authors' code, "last" the algorithm that they print.
    """

    enters: Literal["after", "during"] = "during"
    inner: Positive = 4
    order: Literal[1, 2] = 1
    outer: Literal["last", "each"] = "each"
    rate_lr: Rate | None = None
    clip: Rate | None = 2.0

    @property
    def graph(self) -> Graph | None:
        if self.order == 1:
            return None
        moves = ("representation", "prediction")
        return Graph(moves=moves, cause="order = 2", instead="order = 1", fresh=False)

    def start(self, theta: Theta, task: TaskInfo) -> State:
        rates = tree_map(lambda p: torch.full_like(p, self.lr), theta)
        return super().start(theta, task)._replace(extra={"rates": rates})

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        rate_lr = self.rate_lr or 2 * self.lr
        size = -(-self.batch // min(self.inner, self.batch))

        def update(state: State, batches: Batches, key: Tensor) -> State:
            b_N = batches["new"]._replace(row=())
            b_PN = join(batches["past"], b_N)

            def L(theta: Theta, rates: Theta) -> Tensor:
                ahead, costs = theta, []
                for first in range(0, self.batch, size):
                    piece = tree_map(lambda leaf, i=first: leaf[i : i + size], b_N)
                    slope, _ = gradient(model.cost)(ahead, piece, key[0])
                    if self.order == 1:
                        slope = tree_map(Tensor.detach, slope)
                    ahead = tree_map(lambda p, a, g: p - a * g, ahead, rates, slope)
                    if self.outer == "each" or first + size >= self.batch:
                        costs.append(model.cost(ahead, b_PN, key[0]))
                return torch.stack(costs).mean()

            (by_theta, by_rates), J = gradient(L, argnums=(0, 1))(state.theta, state.extra["rates"])
            by_theta, by_rates = self._clipped(by_theta), self._clipped(by_rates)
            rates = tree_map(lambda a, g: a - rate_lr * g, state.extra["rates"], by_rates)
            grads = tree_map(lambda a, g: torch.relu(a) / self.lr * g, rates, by_theta)
            return self.descend(state, grads, J)._replace(extra={"rates": rates})

        return self.rehearse(task, update)

    def _clipped(self, grads: Theta) -> Theta:
        """Return a gradient, scaled to the norm `clip` if its norm is larger."""
        if self.clip is None:
            return grads
        share = (self.clip / norm(grads).clamp(min=1e-12)).clamp(max=1)
        return tree_map(lambda g: share * g, grads)


plugin = LaMAML
