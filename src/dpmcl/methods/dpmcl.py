"""DPMCL (Algorithm 1, appendix B.4): generalise, look ahead, and mind what was learned."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import annotated_types as at
import torch
from torch import Tensor

from dpmcl.core.batch import Batch, join, weighted_mean
from dpmcl.core.gradients import gradient
from dpmcl.core.model import Model, Parameters
from dpmcl.core.settings import NonNegative, Positive
from dpmcl.core.tree import tree_map
from dpmcl.data.sampling import Draw
from dpmcl.methods._method import Graph, Method, Phase, State


@dataclass(frozen=True, kw_only=True)
class DPMCL(Method):
    """Dynamic programming-based meta continual learning, the paper's method.

    kappa iterations a task (None: N, `updates`). Each draws b_N from the new task and b_P from
    the memory D_P, b_PN = b_P u b_N, and does (Algorithm 1):

    1. generalisation: one step of theta_1, theta_2 on J_N(b_N);
    2. theta_B := theta_2, then zeta steps of theta_B on J_PN(b_PN), theta_1 fixed; then
       one step of theta_1, theta_2 on J_P + (J_PN - J_PN(theta_B)).

    third_term, how J_PN - J_PN(theta_B) is differentiated (the paper does not say):

    - "constant": theta_B is a constant for theta_2; theta_1 receives both gradients. What a direct
      implementation of the printed networks gives;
    - "first": the gradient at theta_B is also applied to theta_2, as if theta_B moved with it one
      to one; zeta = 0 is then no third term;
    - "exact": through the zeta updates, to theta_1 and theta_2;
    - "off": J_P alone.

    step: "alternating" (Algorithm 1), or "joint" (equation 4: one step on the sum of all terms).
    buffer_state: theta_B's optimiser state, "fresh" or "copied" from theta_2's.
    eta: the factor of J_N and J_P (the derivation, A.3, has it; the printed update has 1).

    The third term as printed is unbounded below: a representation that makes the copy worse lowers
    it for ever. guard: "none" leaves it so; "clip" takes its part above 0, max(0, J_PN -
    J_PN(theta_B)), which is 0 where the look-ahead gains nothing; "square" takes its square (the
    authors' earlier code: a tenth of it). third_weight: the term's factor; below 0 it is the
    opposite of the printed sign, which V proportional to +J would give (`docs/theory.md`).

    fourth_term: V(k + 1; theta(k)) of appendix A.3. The paper takes its gradient as 0, since the
    data of the future are not known; here it is J_N on b_N's rows moved by dx, added to step 2.
    "exact" where the stream knows its dynamics (`Stream.following`); "estimated": inputs and
    targets of a regression moved by what their means moved since the last task; "off".
    fourth_weight: its factor, A.3's sign below 0.

    Deviations: the features h(b_PN; theta_1) are computed once for step 2, so its zeta + 1 costs
    share one dropout mask. D_N enters D_P after the task, as printed. At the first task D_P is
    empty, so J_P = 0 and b_PN = b_N.
    """

    stores = "after"

    kappa: Positive | None = None
    zeta: NonNegative = 5
    third_term: Literal["constant", "first", "exact", "off"] = "constant"
    step: Literal["alternating", "joint"] = "alternating"
    buffer_state: Literal["fresh", "copied"] = "fresh"
    eta: Annotated[float, at.Ge(0)] = 1.0
    guard: Literal["none", "clip", "square"] = "none"
    third_weight: float = 1.0
    fourth_term: Literal["off", "exact", "estimated"] = "off"
    fourth_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kappa is None:
            object.__setattr__(self, "kappa", self.updates)

    @property
    def graph(self) -> Graph | None:
        if self.third_term != "exact" or self.zeta == 0:
            return None
        return Graph(
            updates=self.zeta,
            rows=2 * self.batch,  # b_PN
            moves=("prediction",),
            runs=("prediction",),
            cause="third_term = 'exact'",
            fewer="zeta",
            instead="third_term = 'first'",
            fresh=self.buffer_state == "fresh",
        )

    def phases(self, model: Model, task: int) -> Sequence[Phase]:
        draws = {"new": Draw("new", self.batch), "past": Draw("memory", self.batch)}
        if self.fourth_term != "off":
            draws["next"] = Draw("new", self.batch, like="new", moved=self.fourth_term)
        assert self.kappa is not None

        def update(state: State, batches: Mapping[str, Batch], key: Tensor) -> State:
            b_N, b_P = batches["new"], batches["past"]
            if self.step == "alternating":
                state = self._generalise(model, state, b_N, key[0])
            return self._mind_the_past(model, state, b_N, b_P, key[1], batches.get("next"))

        return [Phase("iterate", self.kappa, draws, update, keys=2)]

    def _generalise(self, model: Model, state: State, b_N: Batch, key: Tensor) -> State:
        """Step 1: theta_1, theta_2 one step on J_N."""
        grads, J_N = gradient(self._weighed(model.cost))(state.theta, b_N, key)
        return self.descend(state, grads, J_N)

    def _weighed(self, cost: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """eta times a cost; the cost itself where eta is 1."""
        return cost if self.eta == 1 else lambda *args: self.eta * cost(*args)

    def _guarded(self, third: Tensor) -> Tensor:
        """The third term as it enters the cost."""
        if self.guard == "clip":
            third = torch.relu(third)  # 0 has the derivative 0, in every version
        elif self.guard == "square":
            third = third.square()
        return third if self.third_weight == 1 else self.third_weight * third

    def _mind_the_past(
        self,
        model: Model,
        state: State,
        b_N: Batch,
        b_P: Batch,
        key: Tensor,
        b_next: Batch | None = None,
    ) -> State:
        """Step 2: theta_B ahead by zeta steps, then theta_1, theta_2 one step on all the rest."""
        theta_1, theta_2 = state.theta["representation"], state.theta["prediction"]
        b_PN = join(b_P, b_N)
        past = b_P.x.shape[0]

        def h(theta_1: Parameters) -> Tensor:
            return model.features(theta_1, b_PN.x, key, w=b_PN.w)

        def losses(theta: Parameters, features: Tensor) -> Tensor:
            return model.losses(model.outputs(theta, features, key, w=b_PN.w), b_PN.y)

        def J_PN(theta: Parameters, features: Tensor) -> Tensor:
            return weighted_mean(losses(theta, features), b_PN.w)

        def look_ahead(theta_2: Parameters, features: Tensor) -> Parameters:
            theta_B, buffer = theta_2, state.optimiser["prediction"]
            if self.buffer_state == "fresh":
                buffer = self.rule.init(theta_2)
            for _ in range(self.zeta):
                grads, J_B = gradient(J_PN)(theta_B, features)
                theta_B, buffer = self.rule.step(theta_B, grads, buffer, J_B)
            return theta_B

        features, pull_back = torch.func.vjp(h, theta_1)  # type: ignore[misc]
        ahead = None
        if self.third_term in ("constant", "first"):
            ahead = tree_map(torch.Tensor.detach, look_ahead(theta_2, features))

        def cost(theta_2: Parameters, features: Tensor) -> Tensor:
            each = losses(theta_2, features)
            total = weighted_mean(each[:past], b_PN.w[:past])  # J_P
            if self.step == "joint":
                total = total + weighted_mean(each[past:], b_PN.w[past:])  # J_N
            if self.eta != 1:
                total = self.eta * total
            if self.third_term == "off":
                return total
            if ahead is None:
                theta_B = look_ahead(theta_2, features)
            elif self.third_term == "first":
                # theta_2 + (theta_B - theta_2): the value of theta_B, the derivative of theta_2.
                theta_B = tree_map(lambda a, b: a + (b - a.detach()), theta_2, ahead)
            else:
                theta_B = ahead
            third = weighted_mean(each, b_PN.w) - J_PN(theta_B, features)
            return total + self._guarded(third)

        (grads_2, features_grad), value = gradient(cost, argnums=(0, 1))(theta_2, features)
        (grads_1,) = pull_back(features_grad)
        grads = {"representation": grads_1, "prediction": grads_2}
        if b_next is not None:
            moved, J_next = gradient(model.cost)(state.theta, b_next, key)
            weight = self.fourth_weight
            grads = tree_map(lambda g, m: g + weight * m, grads, moved)
            value = value + weight * J_next
        return self.descend(state, grads, value)


plugin = DPMCL
