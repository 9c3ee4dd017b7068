"""Check the paper's theory on a problem with closed forms: one weight that follows a moving slope.

    python -m benchmarks.hjb [--out FOLDER]

Prints the distance of each equation from the closed form, and where J settles under Theorem 1's
rule and under eq. (4); draws three figures. Takes less than a minute. tests/theory/test_hjb.py
asserts most of the results.
"""

import argparse
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks import linear_quadratic as lq
from benchmarks.linear_quadratic import Problem
from dpmcl.results.figures import save

BLUE, RED, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#777777"
EFFORT, RATE, LEFT = 1.0, 0.5, 4.0
STILL, MOVING = Problem(), Problem(speed=0.3)
TWO = Problem(curvature=torch.tensor([0.05, 1.0], dtype=torch.float64))
STARTS = 2000


def line(first: float, last: float, points: int) -> Tensor:
    return torch.linspace(first, last, points, dtype=torch.float64)


def starts() -> Tensor:
    return torch.randn(STARTS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def equations(folder: Path) -> None:
    """Compare eq. (3) with and without J_N, and V_theta and dV/dt with those of the proof."""
    e, left = line(-2, 2, 401), torch.tensor(LEFT, dtype=torch.float64)
    best, flow = partial(lq.optimal_value, MOVING, EFFORT), partial(lq.flow_value, MOVING, RATE)
    u = lq.optimal_control(MOVING, EFFORT, e, left)
    optimal = lq.residual(MOVING, best, u, e=e, left=left, effort=EFFORT).abs().max()
    gradient = lq.residual(MOVING, flow, lq.flow_step(MOVING, RATE, e), e=e, left=left).abs().max()
    print(f"eq. (3) without J_N is off by {optimal:.1e} (optimal), {gradient:.1e} (gradient flow)")
    complete = lq.residual(MOVING, best, u, e=e, left=left, effort=EFFORT) - lq.cost(MOVING, e)
    ratio = (complete.abs() / lq.cost(MOVING, e))[e.abs() > 0.1]
    print(f"with J_N = J it is off by {ratio.min():.6f} to {ratio.max():.6f} times J_N\n")

    figure, (first, second) = panels(
        2, "$V_\\theta$ and $dV/dt$, true and in the proof of Theorem 1"
    )
    J_theta = MOVING.curvature * e
    first.axhline(0, color=GREY, linewidth=0.6)
    first.plot(e, lq.slope(best, e, left), color=BLUE, label="$V^*_\\theta$, optimal control")
    first.plot(e, lq.slope(flow, e, left), "--", color=GREEN, label="$V_\\theta$, gradient flow")
    first.plot(e, J_theta, ":", color=GREY, label="$J_\\theta$")
    first.plot(e, lq.proof_slope(MOVING, e), "-.", color=RED, label="$-J\\,J_\\theta$ (A.2.3)")
    first.set_xlabel("error $e = \\theta - a(t)$; target moves at 0.3")
    first.set_ylabel("cost x time per unit of $\\theta$; $J_\\theta$: cost per unit")
    first.set_ylim(-4, 4.4)
    first.legend(frameon=False, fontsize=8, loc="upper center")

    beta, problem = 1.0, Problem(speed=0.05)
    behind = line(-2.2, -0.02, 400)
    J, J_theta = lq.cost(problem, behind), problem.curvature * behind
    rate = (1 - (J_theta * problem.speed).abs()) / (beta * J_theta**2)
    second.axhline(0, color=GREY, linewidth=0.6)
    second.axvline(1, ymax=0.78, color=GREY, linewidth=0.8, linestyle=":")
    second.text(1.05, -0.4, "$J = \\beta$", color=GREY, fontsize=9)
    second.plot(J, lq.proof_derivative(problem, rate, behind), "-.", color=RED, label="as printed")
    sign_kept = lq.proof_derivative(problem, rate, behind, printed=False)
    second.plot(J, sign_kept, "--", color=PINK, label="its own $V_\\theta$, sign kept")
    second.plot(J, -J, color=BLUE, label="true, along any rule: $-J$")
    second.set_ylim(-2.5, 3.2)
    second.set_xlabel("$J / \\beta$, $\\beta = 1$, target moves away at 0.05")
    second.set_ylabel("$dV/dt$, cost units (A.2.7)")
    second.legend(framealpha=1, edgecolor="none", fontsize=8, loc="upper left")
    save(figure, folder / "hjb.png")


def bounds(folder: Path) -> None:
    """Show where J settles under Theorem 1's rule and under eq. (4)."""
    beta = 10.0
    print("| rule | v | median of J after 100, 1,000, 10,000 updates | J <= beta then |")
    print("|---|--:|--:|--:|")
    cases = [
        ("Theorem 1's rule, v = 0.1", 0.1, partial(lq.theorem_step, beta=beta)),
        ("Equation (4), v = 0", 0.0, partial(lq.equation_4_step, beta=beta)),
        ("Equation (4), epsilon 0.01", 0.0, partial(lq.equation_4_step, beta=beta, epsilon=0.01)),
        ("Equation (4), v = 0.02", 0.02, partial(lq.equation_4_step, beta=beta)),
    ]
    figure, axes = panels(
        4,
        "$J$ under Theorem 1's rule and under equation (4): twenty starts, and the median of 2,000",
        share=True,
    )
    for ax, (name, speed, rule) in zip(axes, cases, strict=True):
        problem = Problem(speed=speed)
        path = lq.simulate(problem, lambda e, p=problem, r=rule: r(p, e=e), 3 * starts(), 10_000)
        J = lq.cost(problem, path).nan_to_num(nan=float("inf"))
        middle = J.median(1).values
        cells = ", ".join(f"{middle[k]:.3g}" for k in (100, 1000, 10_000))
        print(f"| {name} | {speed} | {cells} | {(J[-1] <= beta).double().mean():.1%} |")
        k = torch.unique(torch.logspace(0, 4, 160).long())
        ax.plot(k, J[k, :20].clamp(1e-3, 1e6), color=BLUE, linewidth=0.4, alpha=0.35)
        ax.plot(k, middle[k], color="black", linewidth=1.6, label="median")
        ax.axhline(beta, color=RED, linestyle="--", linewidth=1.2, label="$\\beta$")
        ax.set_title(name, fontsize=9)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_ylim(1e-3, 1e6)
        ax.set_xlabel("updates")
    level, s, _ = lq.steady(*(torch.tensor(x, dtype=torch.float64) for x in (1.0, 0.1)), beta)
    print(f"Theorem 1's rule should settle at s = {s:.4f}, J = beta s / (1 - s) = {level:.4f}")
    bound = 1 / (8 * beta * 0.01)
    print(f"with epsilon, J <= q / (8 beta epsilon) = {bound:.3f} in the end\n")
    axes[0].axhline(level, color=GREEN, linestyle=":", linewidth=1.4, label="$\\beta s/(1 - s)$")
    axes[2].axhline(bound, color=GREEN, linestyle=":", linewidth=1.4)
    label = "$q/(8\\beta\\epsilon)$"
    axes[2].text(9000, 1.2 * bound, label, color=GREEN, fontsize=9, ha="right", va="bottom")
    axes[0].set_ylabel("$J$, cost units; $q = 1$")
    axes[0].legend(framealpha=1, edgecolor="none", fontsize=8, loc="upper left")
    save(figure, folder / "hjb_bound.png")


def discrete(folder: Path) -> None:
    """Show the error of A.3's Euler step and the effect of the third term's sign."""
    e, left = torch.ones((), dtype=torch.float64), torch.tensor(LEFT, dtype=torch.float64)
    value = partial(lq.flow_value, MOVING, RATE)
    u, v, J = lq.flow_step(MOVING, RATE, e), MOVING.speed, lq.cost(MOVING, e)
    exact = J + lq.slope(value, e, left) * (u - v)
    dts, euler, printed = 2.0 ** -line(0, 10, 21), [], []
    for dt in dts:
        changes = value(e + u * dt, left) + value(e - v * dt, left) - 2 * value(e, left)
        euler.append((J + changes / dt - exact).abs())
        printed.append((J + changes * dt - exact).abs())
    print(f"Euler step of H, dt 1/1024: off by {euler[-1]:.1e}; as printed {printed[-1]:.3f}")
    figure, (first, second) = panels(2, "Appendix A.3 on numbers")
    first.loglog(dts, printed, "-.", color=RED, label="$J + \\Delta t\\,(\\ldots)$, (A.3.4)")
    first.loglog(dts, euler, color=BLUE, label="$J + (\\ldots) / \\Delta t$")
    first.set_xlabel("$\\Delta t$")
    first.set_ylabel("distance to the Hamiltonian, cost units")
    first.legend(frameon=False, fontsize=8)

    generator = torch.Generator().manual_seed(0)
    far = torch.randn(STARTS, 2, generator=generator, dtype=torch.float64)
    best = lq.optimal_control(TWO, 1.0, far, torch.tensor(10.0, dtype=torch.float64))
    cosine = partial(torch.nn.functional.cosine_similarity, best)
    zetas = list(range(31))
    for sign, colour, style, name in (
        (-1, BLUE, "-", "$J_{PN}(\\theta_B) - J_{PN}$"),
        (1, RED, "-.", "$J_{PN} - J_{PN}(\\theta_B)$, printed"),
    ):
        steps = [
            lq.third_term_step(TWO, 1.0, far, inner=0.1, zeta=zeta, sign=sign) for zeta in zetas
        ]
        means = [cosine(step).mean() for step in steps]
        print(
            f"sign {sign:+d}: cosine at zeta 0, 5, 10, 20:",
            *(f"{means[z]:.3f}" for z in (0, 5, 10, 20)),
        )
        second.plot(zetas, means, style, color=colour, label=name)
    second.set_ylim(0.5, 1.01)
    second.set_xlabel("$\\zeta$, inner rate 0.1, curvatures 0.05 and 1")
    second.set_ylabel("cosine to the optimal control")
    second.legend(frameon=False, fontsize=8, title="third term", title_fontsize=8, loc="lower left")
    save(figure, folder / "hjb_discrete.png")
    totals()


def totals() -> None:
    """Print the sum of J over 200 updates by the third term's sign, at rate 0.3 and at the best."""
    print("\n| third term | sum of J, rate 0.3 | best rate | sum of J |")
    print("|---|--:|--:|--:|")
    rates, start = line(0.05, 6, 120)[:, None], torch.ones(120, 2, dtype=torch.float64)
    for speed in (0.0, 0.02):
        problem = Problem(TWO.curvature, speed)
        for sign, name in ((1, "printed"), (0, "none"), (-1, "other sign")):
            step = partial(third_term, rates, sign)
            J = lq.cost(problem, lq.simulate(problem, step, start, 200)).sum((0, 2))
            J = J.nan_to_num(float("inf"))
            rate = rates[J.argmin(), 0]
            print(f"| {name}, v = {speed} | {J[5]:.3f} | {rate:.2f} | {J.min():.3f} |")


def third_term(rates: Tensor, sign: int, e: Tensor) -> Tensor:
    return lq.third_term_step(TWO, rates, e, inner=0.1, zeta=5, sign=sign)


def panels(count: int, title: str, share: bool = False):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0 if count == 2 else 11.0, 3.8), layout="constrained")
    axes = figure.subplots(1, count, sharey=share)
    figure.suptitle(title, fontsize=11)
    for ax in axes:
        ax.grid(alpha=0.25, linewidth=0.5)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = Path(__file__).parent.parent / "docs" / "figures"
    parser.add_argument("--out", type=Path, default=default, help="folder of the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    equations(options.out)
    bounds(options.out)
    discrete(options.out)


if __name__ == "__main__":
    main()
