"""The discount gamma: how much each task's loss counts in J (eq. (1), Lemma 1, Corollary 1).

By age, a task's weight falls as newer tasks come: gamma(t - tau), what the paragraph after the
corollary wants. By time, it is the task's for ever: gamma(tau), as Lemma 1 has it, and a decreasing
one weights the oldest tasks most. The paper names no gamma for its experiments; the default is 1
(`constant`).
"""

import importlib
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpmcl.core.settings import Positive, Rate, Settings
from dpmcl.core.threads import threads
from dpmcl.exceptions import SpecError, reason, unknown

TASKS = 100_000
"""How many tasks a user's weights are checked on, and judged by."""


class Tail(NamedTuple):
    """How weights go on for ever.

    total: the sum of gamma(s) over s = 0, 1, 2, ..., inf where there is none, NaN where the numbers
    do not tell. trend: "constant"; "growing", without bound; "falling", never rising, to 0; or
    "other". sure: whether it is known, and not only what the first TASKS weights tell.
    """

    total: float
    trend: Literal["constant", "growing", "falling", "other"]
    sure: bool = True


@dataclass(frozen=True, kw_only=True)
class Discount(Settings, ABC):
    """Weights of tasks. by: "age", s = newest task - task; or "time", s = task, counted from 0."""

    by: Literal["age", "time"] = "age"

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self)

    @abstractmethod
    def weights(self, s: Tensor) -> Tensor:
        """gamma(s), of the shape of s >= 0, which comes as float64: each from its own s alone."""

    def tail(self) -> Tail:
        """The sum of all weights, and where they tend; from the first TASKS unless overridden."""
        return _measured(_up_to(self, TASKS))


@dataclass(frozen=True, kw_only=True)
class Constant(Discount):
    """gamma(s) = 1: every task counts alike."""

    def weights(self, s: Tensor) -> Tensor:
        return torch.ones_like(s, dtype=torch.float64)

    def tail(self) -> Tail:
        return Tail(math.inf, "constant")


@dataclass(frozen=True, kw_only=True)
class Exponential(Discount):
    """gamma(s) = exp(-rate s): a task 1 / rate tasks further weighs e times less.

    A rate and not a factor a task, since eq. (1) integrates over continuous time; a factor f is
    rate = -log(f).
    """

    rate: Rate = 0.1

    def weights(self, s: Tensor) -> Tensor:
        return torch.exp(-self.rate * s.to(torch.float64))

    def tail(self) -> Tail:
        return Tail(-1 / math.expm1(-self.rate), "falling")


@dataclass(frozen=True, kw_only=True)
class Power(Discount):
    """gamma(s) = (1 + s)^-p: has a sum for p > 1 only, is constant for p = 0, grows for p < 0."""

    p: float = 2.0

    def weights(self, s: Tensor) -> Tensor:
        return (1 + s.to(torch.float64)) ** -self.p

    def tail(self) -> Tail:
        if self.p <= 0:
            return Tail(math.inf, "growing" if self.p else "constant")
        p = torch.tensor(self.p, dtype=torch.float64)
        total = float(torch.special.zeta(p, torch.ones_like(p))) if self.p > 1 else math.inf
        return Tail(total, "falling")


@dataclass(frozen=True, kw_only=True)
class Window(Discount):
    """gamma(s) = 1 for s < width, else 0; by age, the newest task is one of the width."""

    width: Positive = 10

    def weights(self, s: Tensor) -> Tensor:
        return (s < self.width).to(torch.float64)

    def tail(self) -> Tail:
        return Tail(float(self.width), "falling")


DISCOUNTS: Mapping[str, type[Discount]] = {
    "constant": Constant,
    "exponential": Exponential,
    "power": Power,
    "window": Window,
}


def build(setting: str | Mapping[str, Any]) -> Discount:
    """The discount of a setting: a name, or a table of a name and its options.

    A name with a colon, "my_package.module:Name", is a subclass of `Discount` of the user's own.
    Raises SpecError.

    >>> build({"name": "exponential", "rate": 0.5})
    Exponential(by='age', rate=0.5)
    """
    table = {"name": setting} if isinstance(setting, str) else dict(setting)
    name = table.pop("name", None)
    if not isinstance(name, str):
        raise SpecError("discount needs a name, as in discount = 'exponential'.")
    return _class(name).from_table(table, f"discount '{name}'")


def gamma(discount: Discount, now: Tensor | int, task: Tensor) -> Tensor:
    """Weights of tasks while task `now` is the newest; 0 for tasks still to come.

    task: int64. Returns float64 of the shape that `now` and `task` broadcast to.

    >>> gamma(build({"name": "window", "width": 2}), 3, torch.arange(5)).tolist()
    [0.0, 0.0, 1.0, 1.0, 0.0]
    """
    s = now - task if discount.by == "age" else task
    s = s.clamp(min=0).to(torch.float64)
    return discount.weights(s).to(torch.float64) * (task <= now)


def partial_sums(losses: np.ndarray, discount: Discount) -> np.ndarray:
    """J(t), eq. (1) in steps of one task: the sum over tau <= t of gamma times tau's loss after t.

    losses: (replicas, after, task), as in `Errors.after`; or (replicas, task), of tasks whose
    losses stay as they are. What is after `t` is not read. Returns float64 (replicas, tasks), NaN
    where a loss of weight above 0 is missing. Raises SpecError for another shape.

    >>> partial_sums(np.ones((1, 3)), build("constant")).tolist()
    [[1.0, 2.0, 3.0]]
    """
    losses = np.asarray(losses, dtype=np.float64)
    shape = losses.shape
    if losses.ndim == 2:
        losses = np.broadcast_to(losses[:, None], (shape[0], shape[1], shape[1]))
    if losses.ndim != 3 or losses.shape[1] != losses.shape[2]:
        raise SpecError(
            f"Losses must be (replicas, after, task) or (replicas, task), got {shape}; "
            "pass Errors.after."
        )
    weights = _up_to(discount, losses.shape[2])
    sums = np.empty(losses.shape[:2])
    for t in range(losses.shape[1]):
        own = weights[: t + 1]
        own = own[::-1] if discount.by == "age" else own
        counts = own > 0
        sums[:, t] = losses[:, t, : t + 1][:, counts] @ own[counts]
    return sums


@dataclass(frozen=True)
class Verdict:
    """What holds of J(t) as t grows, with losses between eps > 0 and L.

    statement: which of the paper's holds, if one does. outcome: "converges", where theta(t) does;
    "bounded"; "diverges"; "unclear". total: the sum of all weights, with J(t) <= L total. line: the
    same in words.
    """

    statement: Literal["lemma 1", "corollary 1", "neither"]
    outcome: Literal["converges", "bounded", "diverges", "unclear"]
    total: float
    line: str


def verdict(discount: Discount) -> Verdict:
    """Whether J(t) converges, stays bounded or diverges under a discount, and by which statement.

    >>> verdict(build({"name": "power", "p": 1, "by": "time"})).outcome
    'diverges'
    """
    total, trend, sure = discount.tail()
    told = "" if sure else f", as far as {TASKS:,} tasks tell"
    head = f"gamma by {discount.by}"
    if math.isnan(total):
        line = (
            f"{head}: {TASKS:,} tasks do not tell whether the weights have a sum; make them fall "
            "faster for a bounded J(t)."
        )
        return Verdict("neither", "unclear", total, line)
    if math.isinf(total):
        corollary = trend in ("constant", "growing")
        name = "corollary 1 holds" if corollary else "neither lemma 1 nor corollary 1 holds"
        line = (
            f"{head} has no finite sum{told}: {name}, and J(t) grows without bound while losses "
            "stay above some eps > 0; exponential, window and power with p > 1 keep it bounded."
        )
        return Verdict("corollary 1" if corollary else "neither", "diverges", total, line)
    bound = f"{head} sums to {total:.4g}{told}: J(t) <= {total:.4g} L, L the largest loss of a task"
    width = discount.width if isinstance(discount, Window) else None
    if discount.by == "age":
        only = f"; the last {width} tasks alone count" if width else ""
        line = f"{bound}; it need not converge, since other tasks become the newest{only}."
        return Verdict("neither", "bounded", total, line)
    if trend != "falling":
        line = (
            f"{bound}, and converges if theta(t) does, as in lemma 1, though gamma rises at times."
        )
        return Verdict("neither", "converges", total, line)
    only = f", the first {width} alone" if width else ""
    line = (
        f"{bound}; lemma 1 holds, J(t) converges if theta(t) does, and the oldest tasks count "
        f"most{only}."
    )
    return Verdict("lemma 1", "converges", total, line)


def _class(name: str) -> type[Discount]:
    if ":" not in name:
        if name not in DISCOUNTS:
            hint = f"There are: {', '.join(DISCOUNTS)}; or 'module:Name' of your own."
            raise unknown("discount", name, DISCOUNTS, hint)
        return DISCOUNTS[name]
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # whatever the user's own module does
        raise SpecError(f"discount '{name}' cannot be imported: {reason(error)}.") from error
    if not (isinstance(found, type) and issubclass(found, Discount)) or inspect.isabstract(found):
        raise SpecError(
            f"discount '{name}' must be a subclass of dpmcl.theory.discount.Discount with "
            f"`weights`, got {found!r:.80}."
        )
    return found


@threads(1)
def _up_to(discount: Discount, tasks: int) -> np.ndarray:
    """The weights of s = 0 .. tasks - 1, float64."""
    s = torch.arange(tasks, dtype=torch.float64)
    return discount.weights(s).to(torch.float64).detach().numpy()


@threads(1)
def _check(discount: Discount) -> None:
    """Raises SpecError unless the weights are usable, and each is made from its own s alone."""
    s = torch.arange(TASKS, dtype=torch.float64)
    try:
        found = discount.weights(s)
        alone = torch.func.vmap(discount.weights)(s)
        if found.shape != s.shape or alone.shape != s.shape:
            raise ValueError(f"of shape {tuple(found.shape)} for s of shape ({TASKS},)")
    except Exception as error:
        raise SpecError(
            "weights(s) must return a tensor of the shape of s, under torch.func.vmap too; "
            f"it failed for s = 0 .. {TASKS - 1}: {reason(error)}."
        ) from None
    found, alone = found.to(torch.float64), alone.to(torch.float64)
    bad = ~torch.isfinite(found) | (found < 0)
    if bad.any():
        first = int(bad.nonzero()[0])
        raise SpecError(
            f"weights(s) must be finite and at least 0, got {float(found[first]):g} at s = {first}"
            f"; they are checked up to s = {TASKS - 1}."
        )
    if not found.any():
        raise SpecError(f"weights(s) must not all be 0, got 0 for s = 0 .. {TASKS - 1}.")
    if not torch.allclose(found, alone, rtol=1e-6, atol=1e-30):
        raise SpecError(
            "weights(s) must make each weight from its own s alone, got others when all of s is "
            "given at once; leave out sums over s, as in w / w.sum()."
        )


def _measured(weights: np.ndarray) -> Tail:
    """The tail that weights of s = 0 .. n - 1 tell of, by how the sums over doublings of s go.

    Under s^-p the sum over the last half of s is 2^(1 - p) times that over the quarter before it.
    p from 1.02 to 1.2 is left open: 1 / (s log s) and 1 / (s log^2 s) both lie there.
    """
    n, most = len(weights), float(weights.max())
    share = weights / most
    quarter, half = float(share[n // 4 : n // 2].sum()), float(share[n // 2 :].sum())
    p = 1.0 if half else math.inf
    if half and quarter:
        p = 1 + math.log2(quarter) - math.log2(half)
    trend: Literal["constant", "growing", "falling", "other"] = "other"
    if np.all(weights == weights[0]):
        trend = "constant"
    elif p < -0.02:
        trend = "growing"
    elif p > 0.02 and np.all(np.diff(weights) <= 0):
        trend = "falling"
    if p <= 1.02:
        return Tail(math.inf, trend, sure=False)
    if p < 1.2:
        return Tail(math.nan, trend, sure=False)
    rest = half * half / (quarter - half) if half else 0.0
    return Tail(most * (float(share.sum()) + rest), trend, sure=False)
