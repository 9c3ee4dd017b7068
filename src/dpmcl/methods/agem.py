"""A-GEM: steps on the new task that do not raise the cost of old rows, to first order."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpmcl.core.gradients import gradient
from dpmcl.core.model import Model
from dpmcl.core.tree import inner, tree_map
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Batches, Phase, State
from dpmcl.methods._rehearsal import Rehearsal


@dataclass(frozen=True, kw_only=True)
class AGEM(Rehearsal):
    """A-GEM, averaged gradient episodic memory: steps that do not raise the cost of old rows.

    N updates per task. With g_N = grad J(b_N) and g_P = grad J(b_P), a step uses g_N if
    g_N . g_P >= 0, and else g_N - (g_N . g_P / g_P . g_P) g_P. The products are over all
    parameters. At the first task g_P = 0, and the step uses g_N. Source: Chaudhry et al.,
    *Efficient lifelong learning with A-GEM*, 2019.

    Deviations: b_P has `replayed` rows, `batch` by default (256 in the original, or as many as
    b_N). The optimiser, which may have a state, gets the projected gradient. If it needs a cost, it
    gets J(b_N).
    """

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        def update(state: State, batches: Batches, key: Tensor) -> State:
            g_N, J_N = gradient(model.cost)(state.theta, batches["new"], key[0])
            g_P, _ = gradient(model.cost)(state.theta, batches["past"], key[0])
            square = inner(g_P, g_P)
            share = inner(g_N, g_P).clamp(max=0) / torch.where(square > 0, square, 1)
            grads = tree_map(lambda a, b: a - share * b, g_N, g_P)
            return self.descend(state, grads, J_N)

        return self.rehearse(task, update)


plugin = AGEM
