"""The discount gamma: its weights, the sums J(t), and which of the paper's statements holds."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dpmcl.core.settings import Rate
from dpmcl.exceptions import SpecError
from dpmcl.theory import discount
from dpmcl.theory.discount import Constant, Discount, Exponential, Power, Window

FORMULAS = {
    "constant": (Constant(), lambda s: 1.0),
    "exponential": (Exponential(rate=0.3), lambda s: math.exp(-0.3 * s)),
    "power": (Power(p=1.5), lambda s: 1 / (1 + s) ** 1.5),
    "growing": (Power(p=-2), lambda s: (1 + s) ** 2),
    "window": (Window(width=4), lambda s: float(s < 4)),
}
each_formula = pytest.mark.parametrize("name", FORMULAS)


def complaint(setting) -> str:
    with pytest.raises(SpecError) as caught:
        discount.build(setting)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def growth(values: np.ndarray) -> float:
    """How much the last half of the tasks adds."""
    return float(values[-1] - values[len(values) // 2 - 1])


# The weights


@each_formula
def test_weights_are_the_formula_for_every_shape_and_type(name):
    rule, formula = FORMULAS[name]
    s = torch.arange(24).view(2, 3, 4)
    expected = torch.tensor([formula(int(v)) for v in s.flatten()], dtype=torch.float64)
    for given_ in (s, s.to(torch.float32), s.to(torch.float64)):
        found = rule.weights(given_)
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, expected.view(2, 3, 4), rtol=1e-14, atol=0)


@each_formula
@pytest.mark.parametrize("by", ["age", "time"])
def test_gamma_counts_from_the_newest_task_or_from_the_first(name, by):
    rule, formula = FORMULAS[name]
    rule = type(rule).from_table({**rule.to_table(), "by": by}, "test")
    for now in range(7):
        found = discount.gamma(rule, now, torch.arange(7))
        expected = [0.0 if k > now else formula(now - k if by == "age" else k) for k in range(7)]
        assert found.tolist() == pytest.approx(expected, rel=1e-14)


@each_formula
@pytest.mark.parametrize("by", ["age", "time"])
def test_gamma_is_mapped_over_tasks_and_over_the_newest(name, by):
    rule, _ = FORMULAS[name]
    rule = type(rule).from_table({**rule.to_table(), "by": by}, "test")
    now, task = torch.tensor([2, 5, 6]), torch.arange(12).view(3, 4)
    mapped = torch.func.vmap(lambda n, k: discount.gamma(rule, n, k))(now, task)
    assert torch.equal(mapped, discount.gamma(rule, now[:, None], task))
    for n, row, found in zip(now.tolist(), task, mapped, strict=True):
        torch.testing.assert_close(found, discount.gamma(rule, n, row), rtol=1e-14, atol=0)


def test_by_time_the_oldest_task_weighs_most_and_by_age_the_newest():
    """Note 4: Lemma 1's decreasing gamma(tau) is the opposite of what the text after it wants."""
    task = torch.arange(10)
    assert discount.gamma(Exponential(by="time"), 9, task).argmax() == 0
    assert discount.gamma(Exponential(by="age"), 9, task).argmax() == 9


# Settings


def test_a_name_or_a_table_builds_a_discount_that_comes_back_from_its_table():
    assert discount.build("constant") == Constant()
    built = discount.build({"name": "power", "p": 3, "by": "time"})
    assert built == Power(p=3.0, by="time")
    assert discount.build({"name": "power", **built.to_table()}) == built


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("exponental", "No discount 'exponental'. Did you mean 'exponential'? There are: constant"),
        ({"rate": 1}, "discount needs a name"),
        ({"name": "power", "q": 1}, "No setting 'q'. In discount 'power'. It has: by, p."),
        ({"name": "window", "width": 0}, "discount 'window' width must be greater than or equal"),
        ({"name": "exponential", "rate": 0}, "discount 'exponential' rate must be greater than 0"),
        ({"name": "power", "p": math.inf}, "discount 'power' p must be a finite number"),
        ({"name": "power", "p": -200}, "weights(s) must be finite and at least 0, got inf at s ="),
        ({"name": "constant", "by": "tasks"}, "by must be 'age' or 'time', got 'tasks'."),
        ("no_such_module:Name", "discount 'no_such_module:Name' cannot be imported: No module"),
        ("math:gamma", "must be a subclass of dpmcl.theory.discount.Discount with `weights`"),
        ("dpmcl.theory.discount:Discount", "with `weights`"),
    ],
)
def test_what_cannot_be_a_discount_is_said_in_one_line(setting, line):
    assert line in complaint(setting)


# A user's own

OWN = '''
from dataclasses import dataclass
import torch
from dpmcl.theory.discount import Discount

@dataclass(frozen=True, kw_only=True)
class Own(Discount):
    """A user's."""

    half: float = 2.0

    def weights(self, s):
        {body}
'''


@pytest.fixture
def own(tmp_path, monkeypatch, request):
    """The name of a discount in a file of the user's own, whose weights are some line of code."""

    def write(body: str) -> str:
        module = f"own_{abs(hash((request.node.name, body)))}"
        (tmp_path / f"{module}.py").write_text(OWN.replace("{body}", body), "utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        return f"{module}:Own"

    return write


def test_a_users_own_discount_has_options_and_the_same_uses(own):
    name = own("return 2 ** (-s / self.half)")
    rule = discount.build({"name": name, "half": 3.0, "by": "time"})
    found = discount.gamma(rule, 9, torch.tensor([0, 3, 6]))
    assert found.dtype == torch.float64
    assert found.tolist() == pytest.approx([1, 0.5, 0.25])
    same = Exponential(rate=math.log(2) / 3, by="time")
    losses = np.random.default_rng(0).random((2, 9, 9))
    np.testing.assert_allclose(
        discount.partial_sums(losses, rule), discount.partial_sums(losses, same), rtol=1e-12
    )


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("return 1 / s", "must be finite and at least 0, got inf at s = 0"),
        ("return 5.0 - s", "must be finite and at least 0, got -1 at s = 6"),
        ("return 0.0 * s", "must not all be 0"),
        ("return s.numpy() + 1", "must return a tensor of the shape of s"),
        ("return 1.0", "must return a tensor of the shape of s"),
        ("return torch.ones(3)", "of shape (3,) for s of shape (100000,)"),
        ("return s.exp() if s.max() < 3 else torch.ones_like(s)", "under torch.func.vmap too"),
        ("w = torch.exp(-s / 9); return w / w.sum()", "from its own s alone"),
    ],
)
def test_weights_that_no_run_could_use_are_refused_at_the_door(own, body, line):
    assert line in complaint(own(body))


def test_a_module_that_fails_to_import_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "own_that_fails.py").write_text("import no_such_module_at_all", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert "cannot be imported: No module named 'no_such" in complaint("own_that_fails:Own")


# J(t)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 12),
    st.sampled_from(sorted(FORMULAS)),
    st.sampled_from(["age", "time"]),
    st.integers(0, 2**31),
)
def test_partial_sums_are_the_double_loop(tasks, name, by, seed):
    rule, formula = FORMULAS[name]
    rule = type(rule).from_table({**rule.to_table(), "by": by}, "test")
    losses = np.random.default_rng(seed).random((2, tasks, tasks))
    losses[:, *np.triu_indices(tasks, 1)] = np.nan
    found = discount.partial_sums(losses, rule)
    for r in range(2):
        for t in range(tasks):
            each = (formula(t - k if by == "age" else k) * losses[r, t, k] for k in range(t + 1))
            assert found[r, t] == pytest.approx(sum(each), rel=1e-12)


@pytest.mark.parametrize("by", ["age", "time"])
def test_losses_fixed_in_time_are_the_same_after_every_task(by):
    fixed = np.random.default_rng(0).random((3, 6))
    rule = Exponential(rate=0.5, by=by)
    stacked = np.repeat(fixed[:, None], 6, 1)
    np.testing.assert_array_equal(
        discount.partial_sums(fixed, rule), discount.partial_sums(stacked, rule)
    )


def test_a_missing_loss_leaves_a_hole_only_where_it_counts():
    losses = np.ones((1, 4, 4))
    losses[0, 3, 0] = np.nan
    assert np.isnan(discount.partial_sums(losses, Constant())[0]).tolist() == [0, 0, 0, 1]
    assert discount.partial_sums(losses, Window(width=2))[0].tolist() == [1, 2, 2, 2]


@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (1, 2, 2, 2)])
def test_losses_of_another_shape_are_refused(shape):
    with pytest.raises(SpecError, match=r"Losses must be .* got .*; pass Errors.after"):
        discount.partial_sums(np.ones(shape), Constant())


# The statements


@pytest.mark.parametrize(
    ("rule", "total"),
    [
        (Exponential(rate=0.05), 1 / (1 - math.exp(-0.05))),
        (Exponential(rate=30.0), 1.0),
        (Power(p=2), math.pi**2 / 6),
        (Power(p=4), math.pi**4 / 90),
        (Power(p=1.5), 2.6123753486854883),
        (Window(width=7), 7.0),
    ],
)
def test_the_sum_of_weights_is_the_closed_form_and_the_brute_sum(rule, total):
    n = 1_000_000
    brute = float(rule.weights(torch.arange(n)).sum())
    # What is left of a power: the integral from n, within half of its first term.
    rest = n ** (1 - rule.p) / (rule.p - 1) if isinstance(rule, Power) else 0.0
    assert rule.tail().total == pytest.approx(total, rel=1e-12)
    assert brute + rest == pytest.approx(total, rel=1e-9)


CASES = [
    (Constant(), "corollary 1", "diverges", "corollary 1", "diverges"),
    (Power(p=0), "corollary 1", "diverges", "corollary 1", "diverges"),
    (Power(p=-0.5), "corollary 1", "diverges", "corollary 1", "diverges"),
    (Power(p=0.5), "neither", "diverges", "neither", "diverges"),
    (Power(p=1), "neither", "diverges", "neither", "diverges"),
    (Power(p=1.5), "lemma 1", "converges", "neither", "bounded"),
    (Exponential(rate=0.01), "lemma 1", "converges", "neither", "bounded"),
    (Window(width=50), "lemma 1", "converges", "neither", "bounded"),
]


@pytest.mark.parametrize(("rule", *"abcd"), CASES, ids=str)
def test_the_statement_and_the_outcome_by_time_and_by_age(rule, a, b, c, d):
    options = rule.to_table()
    by_time = discount.verdict(type(rule)(**{**options, "by": "time"}))
    by_age = discount.verdict(type(rule)(**{**options, "by": "age"}))
    assert (by_time.statement, by_time.outcome) == (a, b)
    assert (by_age.statement, by_age.outcome) == (c, d)
    for found in (by_time, by_age):
        assert math.isfinite(found.total) == (found.outcome in ("converges", "bounded"))
        assert "\n" not in found.line
        assert "tell" not in found.line
    words = "grows without bound" if d == "diverges" else f"J(t) <= {by_age.total:.4g} L"
    assert words in by_age.line
    assert words in by_time.line


@pytest.mark.parametrize("by", ["age", "time"])
@pytest.mark.parametrize("rule", [case[0] for case in CASES], ids=str)
def test_the_numbers_do_what_the_verdict_says(rule, by):
    """The losses of Lemma 1: fixed in time, between eps = 0.5 and L = 1."""
    rule = type(rule)(**{**rule.to_table(), "by": by})
    tasks, eps = 4000, 0.5
    losses = 0.5 + 0.5 * np.random.default_rng(0).random((1, tasks))
    J = discount.partial_sums(losses, rule)[0]
    weights = rule.weights(torch.arange(tasks)).numpy()
    found = discount.verdict(rule)
    if found.outcome == "diverges":
        last_half = weights[tasks // 2 :].sum()
        assert growth(J) >= (eps if by == "time" else eps - 0.1) * last_half
        assert last_half >= math.log(2) - 1e-3
    else:
        assert J.max() <= found.total
    if found.outcome == "converges":
        assert 0 <= growth(J) <= found.total - weights[: tasks // 2].sum() + 1e-9


def test_a_constant_grows_by_the_task_and_a_harmonic_one_by_its_logarithm():
    J = discount.partial_sums(np.ones((1, 4096)), Constant(by="time"))[0]
    assert J[4095] - J[2047] == 2048
    J = discount.partial_sums(np.ones((1, 4096)), Power(p=1, by="time"))[0]
    doublings = [J[2 * n - 1] - J[n - 1] for n in (256, 512, 1024, 2048)]
    assert doublings == pytest.approx([math.log(2)] * 4, abs=2e-3)


def test_a_convergent_sum_settles():
    J = discount.partial_sums(np.ones((1, 1000)), Exponential(rate=0.1, by="time"))[0]
    assert abs(J[999] - J[499]) < 1e-12
    assert J[999] == pytest.approx(Exponential(rate=0.1).tail().total, rel=1e-12)


# Where the proofs do not follow


def test_the_ratio_test_of_the_proof_calls_a_divergent_sum_convergent():
    """Note 1: the ratio of 1 / (1 + t) is below 1 for all t1 < t2, and its sum has no limit."""
    weights = Power(p=1).weights(torch.arange(4096)).numpy()
    assert (weights[1:] / weights[:-1]).max() < 1
    assert discount.verdict(Power(p=1, by="time")).outcome == "diverges"
    assert growth(np.cumsum(weights)) > 0.69


def test_with_theta_moving_j_is_bounded_and_need_not_converge():
    """Note 2: theta takes two values in turn, so J(t) is no partial sum of one series."""
    tasks = 1000
    rule = Exponential(rate=0.1, by="time")
    total = rule.tail().total
    low, high = 0.2, 1.0
    after = np.where(np.arange(tasks) % 2, high, low)
    J = discount.partial_sums(np.repeat(after[None, :, None], tasks, 2), rule)[0]
    assert J.max() <= high * total
    assert J[-1] - J[-2] == pytest.approx((high - low) * total)

    settling = low + (high - low) * 0.5 ** np.arange(tasks)
    J = discount.partial_sums(np.repeat(settling[None, :, None], tasks, 2), rule)[0]
    assert J[-1] == pytest.approx(low * total, rel=1e-12)
    assert np.abs(np.diff(J[tasks // 2 :])).max() < 1e-12


def test_below_a_convergent_sum_is_not_convergent_where_losses_change_sign():
    """Note 3: J(t) <= L M alone says nothing; losses >= 0 that stay make it rise, so converge."""
    tasks = 1000
    weights = Power(p=2, by="time")
    swinging = -(np.arange(1.0, tasks + 1) ** 2) * (np.arange(tasks) % 2)
    J = discount.partial_sums(swinging[None], weights)[0]
    assert J.max() <= weights.tail().total
    assert growth(J) == -tasks / 4
    J = discount.partial_sums(np.abs(np.sin(np.arange(tasks)))[None], weights)[0]
    assert np.diff(J).min() >= 0
    assert growth(J) < 2e-3


def test_by_age_j_is_bounded_and_need_not_converge_with_theta_fixed():
    """Tasks of loss 1 and 0 in turn: the newest one decides."""
    rule = Exponential(rate=1.0)
    losses = (np.arange(200) % 2)[None].astype(float)
    J = discount.partial_sums(losses, rule)[0]
    assert J.max() <= rule.tail().total
    ratio = math.exp(-1)
    assert J[-1] == pytest.approx(1 / (1 - ratio**2))
    assert J[-2] == pytest.approx(ratio / (1 - ratio**2))


# A user's own, judged by numbers


@dataclass(frozen=True, kw_only=True)
class Numbers(Discount):
    """Any formula of s, whose tail is measured."""

    formula: str = "1 + 0 * s"
    rate: Rate = 1.0

    def weights(self, s: Tensor) -> Tensor:
        return eval(self.formula, {"torch": torch, "s": s.to(torch.float64)})


@pytest.mark.parametrize(
    ("formula", "statement", "outcome"),
    [
        ("3 + 0 * s", "corollary 1", "diverges"),
        ("torch.log(2 + s)", "corollary 1", "diverges"),
        ("2 ** (s / 200)", "corollary 1", "diverges"),
        ("2 - 1 / (1 + s)", "neither", "diverges"),
        ("1 + torch.sin(s)", "neither", "diverges"),
        ("1 / torch.log(2 + s)", "neither", "diverges"),
        ("1 / (1 + s)", "neither", "diverges"),
        ("1 / (3 + s) / torch.log(3 + s)", "neither", "unclear"),
        ("1 / (3 + s) / torch.log(3 + s) ** 2", "neither", "unclear"),
        ("(1 + s) ** -1.5", "lemma 1", "converges"),
        ("torch.exp(-s / 1000)", "lemma 1", "converges"),
        ("torch.exp(-s / 70)", "lemma 1", "converges"),
        ("1.0 * (s < 40)", "lemma 1", "converges"),
        ("s * torch.exp(-s / 9)", "neither", "converges"),
        ("(1 + torch.sin(s)) / (1 + s) ** 2", "neither", "converges"),
        ("1.0 * (s > 60000)", "neither", "diverges"),
    ],
)
def test_a_users_own_is_judged_as_far_as_its_first_tasks_tell(formula, statement, outcome):
    found = discount.verdict(Numbers(formula=formula, by="time"))
    assert (found.statement, found.outcome) == (statement, outcome)
    assert "100,000 tasks" in found.line
    by_age = discount.verdict(Numbers(formula=formula, by="age")).outcome
    assert by_age == {"converges": "bounded"}.get(outcome, outcome)


@pytest.mark.parametrize(
    ("formula", "total"),
    [
        ("(1 + s) ** -1.5", 2.6123753486854883),
        ("(1 + s) ** -2", math.pi**2 / 6),
        ("1e200 * torch.exp(-s / 70)", 1e200 / (1 - math.exp(-1 / 70))),
        ("1e-200 * (s < 40).to(s)", 40e-200),
    ],
)
def test_the_measured_sum_takes_the_rest_into_account(formula, total):
    assert Numbers(formula=formula).tail().total == pytest.approx(total, rel=1e-4)


@settings(max_examples=20, deadline=None)
@given(st.floats(-3, 4))
def test_measured_and_closed_form_agree_on_every_power(p):
    exact, measured = Power(p=p).tail(), Discount.tail(Power(p=p))
    if abs(p) < 0.03 or 1.01 < p < 1.21:
        return
    assert (measured.trend, math.isinf(measured.total)) == (exact.trend, math.isinf(exact.total))
    if math.isfinite(exact.total):
        assert measured.total == pytest.approx(exact.total, rel=1e-3)
