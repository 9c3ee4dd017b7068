"""The assumptions and claims of Theorem 1, as conditions on the readings of a replica.

Let J = J_N + J_P, let D = -J_theta' dtheta be the decrease of J by an update to first order, and
J_x' dx its increase as the inputs move. Then (A.2.7) reads

    dV/dt = -J (1 - D - J_x' dx)

For the update of the theorem, D is alpha J ||J_theta||^2. Substituting that update as the theorem
defines it gives + D in place of - D (`docs/theory_results.md`). Both forms are recorded; the
printed one is stricter.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpmcl.core.model import Theta
from dpmcl.core.tree import inner, norm
from dpmcl.theory.terms import Sensitivity, input_norms

EPS = 1e-8
"""epsilon of equation (4)."""

VANISHED = 1e-6
"""Share of the cost below which a gradient counts as vanished."""

NOTHING = 1e-7
"""Decrease of the cost below which it counts as rounding, as of cross-entropy in float32. It does
not shrink with the unit of the cost, so `step` never breaks for costs far below it."""


class Reading(NamedTuple):
    """One reading: scalars of one replica, which the monitor stacks. Norms are Euclidean.

    Attributes:
        J_N, J_P, J_PN: Costs on b_N, on b_P and on both.
        J_PN_ahead: J_PN(theta_B), or NaN.
        J: J_N + J_P.
        J_theta, J_x, dx, dtheta, theta: Norms; dtheta is the next update.
        decrease: -J_theta' dtheta.
        increase: J_x' dx, plus J_y' dy if the targets move too.
        reach: Bound on the increase, ||J_x|| ||dx|| + ||J_y|| ||dy||.
        third_proof, third_difference, fourth_proof, fourth_difference: Third and fourth term of
            equation (3), by the estimates `proof` and `difference` (`theory.terms`).
        alpha: Step size taken, decrease / ||J_theta||^2.
        alpha_theorem: Numerator of Theorem 1 over the denominator of equation (4), not clipped.
        dV_dt: dV/dt by (A.2.7) as printed.
        dV_dt_substituted: dV/dt with dtheta = alpha V_theta substituted.
        beta, radius: Bounds on J and on ||theta||.
    """

    J_N: Any
    J_P: Any
    J_PN: Any
    J_PN_ahead: Any
    J: Any
    J_theta: Any
    J_x: Any
    dx: Any
    reach: Any
    dtheta: Any
    theta: Any
    decrease: Any
    increase: Any
    third_proof: Any
    fourth_proof: Any
    third_difference: Any
    fourth_difference: Any
    alpha: Any
    alpha_theorem: Any
    dV_dt: Any
    dV_dt_substituted: Any
    beta: Any
    radius: Any


def reading(
    measured: Sensitivity,
    theta: Theta,
    dtheta: Theta,
    move: tuple[Tensor, Tensor],
    *,
    beta: Tensor,
    radius: Tensor,
    ahead: Tensor,
    J_N_next: Tensor,
) -> Reading:
    """Return the reading of one replica.

    Args:
        measured: Costs and gradients at theta.
        theta: Parameters.
        dtheta: Next update of the parameters.
        move: dx and dy of the rows of b_N.
        beta: Bound on J, a scalar.
        radius: Bound on the norm of theta, a scalar.
        ahead: J_PN(theta_B), or NaN if not computed.
        J_N_next: J_N on the moved rows, or NaN if not computed.
    """
    dx, dy = move
    J = measured.costs.J_N + measured.costs.J_P
    J_theta = norm(measured.J_theta)
    norms = input_norms(measured.J_x, measured.J_y, dx, dy)
    decrease = -inner(measured.J_theta, dtheta)
    increase = (measured.J_x * dx).sum() + (measured.J_y * dy).sum()
    return Reading(
        *measured.costs,
        J_PN_ahead=ahead,
        J=J,
        J_theta=J_theta,
        J_x=norms.J_x,
        dx=norms.dx,
        reach=norms.reach,
        dtheta=norm(dtheta),
        theta=norm(theta),
        decrease=decrease,
        increase=increase,
        third_proof=J * decrease,
        fourth_proof=-J * increase,
        third_difference=measured.costs.J_PN - ahead,
        fourth_difference=measured.costs.J_N - J_N_next,
        alpha=decrease / torch.where(J_theta > 0, J_theta.square(), 1),
        alpha_theorem=(1 - norms.reach) / (beta * J_theta.square() + EPS),
        dV_dt=-J * (1 - decrease - increase),
        dV_dt_substituted=-J * (1 + decrease - increase),
        beta=beta,
        radius=radius,
    )


@dataclass(frozen=True)
class Condition:
    """An assumption or claim of Theorem 1, or Polyak's bound (`step`), which is not in the paper.

    Attributes:
        rule: The condition, in words for messages.
        shows: Function of the readings r, whose quantities are r[name]; returns the one that a
            message reports.
        broken: Function of the readings; returns where the condition fails, bool.
        advice: Remedy, in words for messages.
    """

    rule: str
    shows: Callable[[Any], np.ndarray]
    broken: Callable[[Any], np.ndarray]
    advice: str


CONDITIONS: Mapping[str, Condition] = {
    "cost": Condition(
        "J = J_N + J_P <= beta (Theorem 1)",
        lambda r: r["J"],
        lambda r: ~(r["J"] <= r["beta"]),
        "take smaller steps, or raise monitor.beta",
    ),
    "rate": Condition(
        "dV/dt <= 0, that is -J_theta' dtheta + J_x' dx <= 1 (A.2.8)",
        lambda r: r["decrease"] + r["increase"],
        lambda r: r["dV_dt"] > 0,
        "take smaller steps, or change the task by less at a time (the second term)",
    ),
    "step": Condition(
        "-J_theta' dtheta <= 2 J (the most that Polyak's bound on a gradient step allows)",
        lambda r: r["decrease"] / np.where(r["J"] > 0, r["J"], 1),
        lambda r: r["decrease"] > 2 * r["J"] + NOTHING,
        "the cost may fall all the same; where it does not, take smaller steps, as optimiser = "
        "'theorem' with a larger beta does",
    ),
    "inputs": Condition(
        "||J_x|| ||dx|| < 1 (Theorem 1)",
        lambda r: r["reach"],
        lambda r: r["reach"] >= 1,
        "scale the inputs, or change the task by less at a time",
    ),
    "gradient": Condition(
        "||J_theta|| > 0 (Theorem 1)",
        lambda r: r["J_theta"],
        lambda r: (r["J"] > 0) & (r["J_theta"] <= VANISHED * r["J"]),
        "the gradient has vanished: look for dead units, or saturated outputs",
    ),
    "sensitivity": Condition(
        "||J_x|| > 0 (Theorem 1)",
        lambda r: r["J_x"],
        lambda r: (r["J_N"] > 0) & (r["J_x"] <= VANISHED * r["J_N"]),
        "the new task's inputs do not reach its cost: look for dead units or constant inputs",
    ),
    "parameters": Condition(
        "theta stays in a compact set: ||theta|| <= radius (Theorem 1)",
        lambda r: r["theta"],
        lambda r: r["theta"] > r["radius"],
        "take smaller steps, or raise monitor.radius",
    ),
}
"""The conditions that a monitor checks at each reading, by name, in the order of its messages."""
