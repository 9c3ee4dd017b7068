"""DPMCL (Algorithm 1, appendix B.4): learn the new task, look ahead, and limit forgetting."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from dpmcl.core.batch import Batch, Costs, costs_of, join, weighted_mean
from dpmcl.core.gradients import gradient
from dpmcl.core.model import Model, Parameters
from dpmcl.core.settings import NonNegative, NonNegativeFloat, Positive
from dpmcl.core.tree import tree_map
from dpmcl.data.sampling import Draw
from dpmcl.data.task_info import TaskInfo
from dpmcl.methods._method import Batches, Graph, Method, Phase, State

_ThetaB = Callable[[Parameters, Tensor], Parameters]


@dataclass(frozen=True, kw_only=True)
class DPMCL(Method):
    """Dynamic programming-based meta continual learning, the paper's method.

    kappa iterations per task (None: N, `updates`). Each draws b_N from the new task and b_P from
    the memory D_P, sets b_PN = b_P u b_N, and does (Algorithm 1):

    1. generalisation: one step of theta_1, theta_2 on J_N(b_N);
    2. theta_B := theta_2, then zeta steps of theta_B on J_PN(b_PN) with theta_1 fixed; then
       one step of theta_1, theta_2 on J_P + (J_PN - J_PN(theta_B)).

    third_term: how J_PN - J_PN(theta_B) is differentiated, which the paper does not specify:

    - "constant": theta_B is a constant with respect to theta_2; theta_1 gets both gradients. A
      direct implementation of the printed networks does this;
    - "first": the gradient at theta_B is also applied to theta_2, as if theta_B changed with
      theta_2 one to one; with zeta = 0 there is then no third term;
    - "exact": through the zeta updates, to theta_1 and theta_2;
    - "off": no third term, J_P alone.

    step: "alternating" (Algorithm 1), or "joint" (equation 4: one step on the sum of all terms).
    buffer_state: optimiser state of theta_B, "fresh" or "copied" from theta_2.
    eta: factor of J_N and J_P; the derivation (A.3) has it, the printed update has 1.

    The third term as printed is unbounded below: a representation that makes the look-ahead worse
    lowers it without limit. guard: "none" leaves it so; "clip" uses max(0, J_PN - J_PN(theta_B)),
    which is 0 if the look-ahead does not lower J_PN; "square" uses its square (a tenth of it in the
    authors' earlier code). third_weight: factor of the term; below 0 it reverses the printed sign,
    as V proportional to +J would (`docs/theory.md`).

    fourth_term: V(k + 1; theta(k)) of appendix A.3. The paper sets its gradient to 0, since future
    data are not known; here it is J_N on the rows of b_N moved by dx, added to step 2. "exact": dx
    from the stream, which must know its dynamics (`Stream.following`); "estimated": inputs and
    targets of a regression are moved by the change of their means since the last task; "off".
    fourth_weight: factor of the term; A.3 has the sign below 0.

    Deviations: the features h(b_PN; theta_1) are computed once for step 2, so its zeta + 1 costs
    share one dropout mask. D_N enters D_P after the task, as printed. At the first task D_P is
    empty, so J_P = 0 and b_PN = b_N.
    """

    stores = "after"
    counts = ("updates", "kappa")

    kappa: Positive | None = None
    zeta: NonNegative = 5
    third_term: Literal["constant", "first", "exact", "off"] = "constant"
    step: Literal["alternating", "joint"] = "alternating"
    buffer_state: Literal["fresh", "copied"] = "fresh"
    eta: NonNegativeFloat = 1.0
    guard: Literal["none", "clip", "square"] = "none"
    third_weight: float = 1.0
    fourth_term: Literal["off", "exact", "estimated"] = "off"
    fourth_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kappa is None and self.passes is None:
            object.__setattr__(self, "kappa", self.updates)

    @property
    def graph(self) -> Graph | None:
        if self.third_term != "exact" or self.zeta == 0:
            return None
        return Graph(
            moves=("prediction",),
            cause="third_term = 'exact'",
            instead="third_term = 'first'",
            fresh=self.buffer_state == "fresh",
        )

    def phases(self, model: Model, task: TaskInfo) -> Sequence[Phase]:
        new = self.new_rows()
        draws = {"new": new, "past": Draw("memory", self.batch)}
        if self.fourth_term != "off":
            draws["next"] = replace(new, like="new", moved=self.fourth_term)

        def update(state: State, batches: Batches, key: Tensor) -> State:
            if self.step == "alternating":
                state = self._generalise(model, state, batches["new"], key[0])
            return self._limit_forgetting(model, state, batches, key[1])

        return [Phase("iterate", self.kappa or self.updates_of(task), draws, update, keys=2)]

    def _generalise(self, model: Model, state: State, b_N: Batch, key: Tensor) -> State:
        """Return the state after step 1: one step of theta_1, theta_2 on J_N."""
        J = gradient(lambda theta: self._times_eta(model.cost(theta, b_N, key)))
        return self.descend(state, *J(state.theta))

    def _times_eta(self, cost: Tensor) -> Tensor:
        """Return eta times a cost; the cost itself if eta is 1."""
        return cost if self.eta == 1 else self.eta * cost

    def _guarded(self, third: Tensor) -> Tensor:
        """Return the third term as it enters the cost."""
        if self.guard == "clip":
            third = torch.relu(third)  # its derivative at 0 is 0 in every version of PyTorch
        elif self.guard == "square":
            third = third.square()
        return third if self.third_weight == 1 else self.third_weight * third

    def _limit_forgetting(self, model: Model, state: State, batches: Batches, key: Tensor) -> State:
        """Return the state after step 2: zeta steps of theta_B, then one of theta_1, theta_2."""
        rows = _Rows(model, batches["past"], batches["new"], key)
        theta_1, theta_2 = state.theta["representation"], state.theta["prediction"]
        features, pull_back = torch.func.vjp(rows.h, theta_1)  # type: ignore[misc]
        theta_B = self._theta_B(rows, state, features)

        def cost(theta_2: Parameters, features: Tensor) -> Tensor:
            costs = rows.costs(theta_2, features)
            J = costs.J_P if self.step == "alternating" else costs.J_P + costs.J_N
            J = self._times_eta(J)
            if self.third_term == "off":
                return J
            third = costs.J_PN - rows.J_PN(theta_B(theta_2, features), features)
            return J + self._guarded(third)

        (grads_2, grads_features), J = gradient(cost, argnums=(0, 1))(theta_2, features)
        (grads_1,) = pull_back(grads_features)
        grads = {"representation": grads_1, "prediction": grads_2}
        if "next" in batches:
            next_grads, J_next = gradient(model.cost)(state.theta, batches["next"], key)
            weight = self.fourth_weight
            grads = tree_map(lambda g, m: g + weight * m, grads, next_grads)
            J = J + weight * J_next
        return self.descend(state, grads, J)

    def _theta_B(self, rows: "_Rows", state: State, features: Tensor) -> _ThetaB:
        """Return theta_B as a function of theta_2 and the features, for the third term."""
        buffer = state.optimiser["prediction"] if self.buffer_state == "copied" else None

        def look_ahead(theta_2: Parameters, features: Tensor) -> Parameters:
            def J_PN(theta_B: Parameters, step: int) -> Tensor:
                return rows.J_PN(theta_B, features)

            theta_B: Parameters = self.rule.descended(J_PN, theta_2, self.zeta, buffer)
            return theta_B

        if self.third_term in ("exact", "off"):
            return look_ahead
        ahead = tree_map(Tensor.detach, look_ahead(state.theta["prediction"], features))
        if self.third_term == "constant":
            return lambda theta_2, features: ahead
        # theta_2 + (theta_B - theta_2): the value of theta_B, the derivative of theta_2.
        return lambda theta_2, features: tree_map(lambda a, b: a + (b - a.detach()), theta_2, ahead)


class _Rows:
    """The rows b_PN = b_P u b_N, and their costs under one dropout mask."""

    def __init__(self, model: Model, b_P: Batch, b_N: Batch, key: Tensor) -> None:
        self._model, self._key = model, key
        self._b_P, self._b_N, self._b_PN = b_P, b_N, join(b_P, b_N)

    def h(self, theta_1: Parameters) -> Tensor:
        """Return the features of b_PN."""
        return self._model.features(theta_1, self._b_PN.x, self._key, w=self._b_PN.w)

    def costs(self, theta_2: Parameters, features: Tensor) -> Costs:
        """Return J_N, J_P and J_PN."""
        return costs_of(self._losses(theta_2, features), self._b_N, self._b_P)

    def J_PN(self, theta_2: Parameters, features: Tensor) -> Tensor:
        """Return J_PN alone, as the look-ahead needs it."""
        return weighted_mean(self._losses(theta_2, features), self._b_PN.w)

    def _losses(self, theta_2: Parameters, features: Tensor) -> Tensor:
        """Return the loss of each row of b_PN."""
        outputs = self._model.outputs(theta_2, features, self._key, w=self._b_PN.w)
        return self._model.losses(outputs, self._b_PN.y)


plugin = DPMCL
