"""LOR: look ahead in several directions between new and old rows, and weigh the worst most."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpmcl.core import keys
from dpmcl.core.batch import join
from dpmcl.core.gradients import gradient
from dpmcl.core.model import Model
from dpmcl.core.settings import NonNegativeFloat, Positive, Rate
from dpmcl.core.tree import tree_map
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Batches, Phase, State
from dpmcl.methods._rehearsal import Rehearsal


@dataclass(frozen=True, kw_only=True)
class LOR(Rehearsal):
    """LOR, lookahead optimisation for rehearsal: steps by gradients at several points ahead.

    N updates per task. With g_N = grad J(b_N) and g_P = grad J(b_P), K = `directions` mixtures
    d_k = w_k g_N + (1 - w_k) g_P lead to theta_k = theta - eta d_k; w_k is uniform in [0, 1) and
    drawn for each update (Dirichlet with alpha_s = 1). L_k and G_k are the cost and gradient of
    b_P u b_N at theta_k; the step of theta uses sum_k softmax(L / mu)_k G_k. w, d and the softmax
    are constants: first order. Source: Lai et al., *Beyond myopic alignment: lookahead optimization
    for online class-incremental learning*, CVPR 2026; there is no code by its authors. An update
    costs K + 2 gradients, and looks ahead as DPMCL does.

    Deviations: K and eta are not in the parts of the paper that we have read; the defaults were
    chosen on held-out rows of digits. eta None is a tenth of the learning rate: if eta times the
    curvature exceeds 1, a step by the gradient at theta_k raises the cost, and with eta = lr the
    method forgot more than `replay`. At the first task g_P = 0.
    """

    directions: Positive = 3
    eta: NonNegativeFloat | None = None
    mu: Rate = 1.0

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        eta = self.lr / 10 if self.eta is None else self.eta

        def update(state: State, batches: Batches, key: Tensor) -> State:
            b_N, b_P = batches["new"], batches["past"]
            g_N, _ = gradient(model.cost)(state.theta, b_N, key[0])
            g_P, _ = gradient(model.cost)(state.theta, b_P, key[0])
            share = keys.uniform(key[1], (self.directions,)).to(model.dtype)
            costs, slopes = [], []
            for w in share.unbind():
                ahead = tree_map(
                    lambda p, n, o, w=w: p - eta * (w * n + (1 - w) * o),
                    *(state.theta, g_N, g_P),
                )
                G, L = gradient(model.cost)(ahead, join(b_P, b_N), key[0])
                costs.append(L)
                slopes.append(G)
            weight = torch.softmax(torch.stack(costs) / self.mu, 0)
            grads = tree_map(
                lambda *g: sum(a * b for a, b in zip(weight.unbind(), g, strict=True)), *slopes
            )
            return self.descend(state, grads, (weight * torch.stack(costs)).sum())

        return self.rehearse(task, update, keys=2)


plugin = LOR
