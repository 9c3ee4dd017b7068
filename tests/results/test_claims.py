"""The paper's claims, answered from results that are made up."""

import pytest

from conftest import random_record
from dpmcl.results.claims import Answer, Claim, figure3_values, of_figure3, of_table1
from dpmcl.results.comparison import entries
from dpmcl.results.paper import METHODS, BySeed, Key
from dpmcl.results.store import Stored, StreamInfo

SEEDS = range(10)


def values_around(mean: float, spread: float = 0.001) -> BySeed:
    """Return ten values about a mean."""
    return {seed: mean + spread * (1 + mean) * (seed - 4.5) for seed in SEEDS}


def table(stream: str, cme: list[float], nte: list[float]) -> dict[Key, BySeed]:
    """Return means in the order of the paper's table as values by seed."""
    both = {"CME": cme, "NTE": nte}
    return {
        (stream, measure, method): values_around(mean)
        for measure, means in both.items()
        for method, mean in zip(METHODS, means, strict=True)
    }


def answers(claims: list[Claim]) -> dict[str, Answer]:
    return {claim.text: claim.answer for claim in claims}


def test_the_papers_own_figures_bear_out_what_it_claims_of_mnist() -> None:
    printed = table(
        "mnist",
        [0.912, 0.020, 0.023, 0.659, 0.873, 0.030],
        [0.001, 0.013, 0.021, 0.001, 0.884, 0.034],
    )
    claims = of_table1(printed)
    assert set(answers(claims).values()) == {"yes"}
    assert claims[0].figures.startswith("dpmcl 0.02 (0.000977), oml 0.023")


def test_a_better_rival_and_a_rival_that_nothing_tells_apart() -> None:
    text = "mnist: DPMCL has the lowest CME"
    worse = table("mnist", [0.9, 0.05, 0.06, 0.6, 0.8, 0.04], [0.0] * 6)
    assert answers(of_table1(worse))[text] == "no"
    level = table("mnist", [0.9, 0.05, 0.06, 0.6, 0.8, 0.05], [0.0] * 6)
    assert answers(of_table1(level))[text] == "not significant"
    er = dict.fromkeys(SEEDS, 0.0473)  # t = 2.7: one of five rivals is as far by chance
    assert answers(of_table1({**level, ("mnist", "CME", "er"): er}))[text] == "not significant"
    two = {key: level[key] for key in level if key[2] in ("dpmcl", "naive")}
    assert answers(of_table1({**two, ("mnist", "CME", "naive"): er}))[text] == "no"
    alone = {("mnist", "CME", "dpmcl"): values_around(0.05)}
    assert answers(of_table1(alone))[text] == "not run"


@pytest.mark.parametrize(
    ("er", "answer"),
    [(0.464, "yes"), (0.40, "in direction"), (0.55, "no"), (0.496, "not significant")],
)
def test_a_difference_is_compared_with_the_printed_one(er: float, answer: Answer) -> None:
    ours = table("cifar10", [0.9, 0.496, 0.676, 0.65, 0.9, er], [0.0, 0.23, 0.1, 0.0, 0.7, 0.458])
    got = answers(of_table1(ours))
    assert got["cifar10: ER's CME is lower than DPMCL's, by 0.032"] == answer
    assert got["cifar10: OML's CME is higher than DPMCL's, by 0.180"] == "yes"


def test_sine_is_a_matter_of_powers_of_ten() -> None:
    text = "sine: DPMCL, OML and ER have a CME within a factor of ten"

    def answer(er: float) -> Answer:
        means = dict(zip(METHODS, [1e-4, 1e-5, 2e-5, 5e-4, 1e-4, er], strict=True))
        ours = {("sine", "CME", name): dict.fromkeys(SEEDS, mean) for name, mean in means.items()}
        return answers(of_table1(ours))[text]

    assert (answer(9e-5), answer(2e-4)) == ("yes", "no")


def test_zeta_and_kappa() -> None:
    falling = {x: values_around(0.5 - x / 100) for x in (0, 2, 5, 20)}
    rising = {x: values_around(0.1 + x / 100) for x in (0, 2, 5, 20)}
    no_points: dict[float, BySeed] = {}
    got = answers(of_figure3({"CME": falling, "NTE": rising}, {"CME": no_points, "NTE": no_points}))
    assert [answer for text, answer in got.items() if "zeta" in text] == ["yes"] * 3 + ["no"] * 3
    assert [answer for text, answer in got.items() if "kappa" in text] == ["not run"] * 2

    levels = {50: 0.5, 100: 0.4, 200: 0.3, 250: 0.25, 300: 0.25}
    kappa = {x: values_around(mean) for x, mean in levels.items()}
    deeper = {**kappa, 300: values_around(0.2)}
    text = "omniglot: NTE falls with kappa up to 200, and no further from 250 on"
    assert answers(of_figure3({}, {"CME": kappa, "NTE": kappa}))[text] == "yes"
    assert answers(of_figure3({}, {"CME": kappa, "NTE": deeper}))[text] == "no"


@pytest.mark.filterwarnings("error")
def test_equal_errors_have_no_trend() -> None:
    equal_but_for_rounding = [0.0, 0.0, 0.0], [0.3, 0.1 + 0.2, 0.1 + 0.2]
    for errors in equal_but_for_rounding:
        level = {x: dict.fromkeys(SEEDS, error) for x, error in zip((5, 2, 0), errors, strict=True)}
        got = answers(of_figure3({"NTE": level}, {}))
        assert got["omniglot: NTE falls as zeta grows"] == "not significant"


def test_points_that_several_runs_have_are_left_out() -> None:
    info = StreamInfo("omniglot", "classification", ("0", "1", "2"), ())
    runs = {}
    for zeta, lr in ((0, 0.1), (5, 0.1), (5, 0.2)):
        settings = {"zeta": zeta, "kappa": 200, "lr": lr}
        spec = {"stream": {"name": "omniglot"}, "methods": {"dpmcl": settings}}
        runs[f"{zeta},{lr}"] = Stored(spec, info, {"dpmcl": random_record()})
    assert list(figure3_values(entries(runs), "zeta")["CME"]) == [0]
    for run in runs.values():
        run.spec["stream"]["name"] = "table"  # a file omniglot.csv
    assert figure3_values(entries(runs), "zeta")["CME"] == {}
