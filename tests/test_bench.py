"""Benchmarks: fair rounds, right sums, loops that compute the same. Speed is not tested."""

import json
import statistics

import pytest
import torch

from benchmarks import __main__ as bench
from benchmarks import measure, mutants, plain, problems
from benchmarks.measure import Contestant, Timing
from dpmcl import Batch, State

CPU = torch.device("cpu")


class Fake:
    """A contestant's run with a fixed time per update, which records its calls."""

    def __init__(self, each: float, calls: list, name: str = "a"):
        self.each, self.calls, self.name = each, calls, name

    def __call__(self, updates: int) -> float:
        self.calls.append((self.name, updates, torch.get_num_threads()))
        return self.each * updates


def test_contestants_take_turns_each_with_its_threads():
    calls, before = [], torch.get_num_threads()
    contestants = [Contestant(name, Fake(0.25, calls, name)) for name in "abc"]
    contestants.append(Contestant("d", Fake(0.25, calls, "d"), threads=2, updates=7))
    timings = measure.measure(contestants, 3, 1.0)
    assert [name for name, _, _ in calls[-12:]] == list("abcd") * 3
    assert [number for _, _, number in calls[-4:]] == [1, 1, 1, 2]
    assert torch.get_num_threads() == before
    assert [timing.updates for timing in timings] == [4, 4, 4, 7]
    assert timings[0].repeats == pytest.approx((250.0,) * 3)
    assert Timing(contestants[0], 1, (1.0, 9.0, 2.0)).ms == 2.0


@pytest.mark.parametrize(("each", "updates"), [(10.0, 1), (1.0, 1), (0.1, 10), (0.003, 333)])
def test_a_timing_has_as_many_updates_as_fill_its_time(each, updates):
    calls = []
    assert measure.updates_for(Fake(each, calls), 1.0) == updates
    assert calls[-1][1] == updates
    assert (
        measure.updates_for(lambda _: 0.0, 1.0) <= 10_000_000
    )  # ends even if the clock stands still


@pytest.mark.parametrize("method", ["er", "dpmcl"])
def test_the_plain_loop_does_what_the_method_does(method):
    problem = problems.problem("sine", CPU)
    settings, (loop, _) = problem.method(method), plain.contestants(problem, method, 1)
    h, g = loop.run.h, loop.run.g
    theta = {
        part: {name: value.detach().clone() for name, value in module.named_parameters()}
        for part, module in (("representation", h), ("prediction", g))
    }
    state: State = settings.start(theta, problem.infos[0])
    (phase,) = settings.phases(problem.model, problem.infos[1])
    for new, old in ((0, 100), (200, 300)):
        rows = [(problem.stream.x[k : k + 64], problem.stream.y[k : k + 64]) for k in (new, old)]
        batch = [Batch(x, y, torch.ones(64), torch.zeros(64).long()) for x, y in rows]
        names = {"replay": batch[0]} if method == "er" else {"new": batch[0], "past": batch[1]}
        state = phase.update(state, names, torch.zeros(phase.keys, 2).long())
        _ = loop.run.step(*rows[0]) if method == "er" else loop.run.iterate(*rows)
    for part, module in (("representation", h), ("prediction", g)):
        for name, value in module.named_parameters():
            torch.testing.assert_close(state.theta[part][name], value, rtol=1e-4, atol=1e-5)
            assert not torch.equal(theta[part][name], value)


def test_a_report_has_a_row_for_every_contestant(tmp_path, capsys):
    out = tmp_path / "new" / "bench.json"
    bench.main(["sine", "--quick", "--out", str(out), "--device", "cpu"])
    report, printed = json.loads(out.read_text("utf-8")), capsys.readouterr().out
    assert report["machine"]["torch"] == torch.__version__
    for method, phase in (("er", "replay"), ("dpmcl", "iterate")):
        rows = [row for row in report["rows"] if row["method"] == method]
        default, *others = [row for row in rows if row["kind"] != "avalanche"]
        forms = [f"{method} {phase}, {form}" for form in ("looped", "batched R=1", "batched R=2")]
        assert [row["name"] for row in others] == [
            "plain loop, 1 thread",
            *forms,
            f"{method}, run of 2",
        ]
        for row in rows:
            assert min(row["repeats"]) > 0
            assert row["ms"] == statistics.median(row["repeats"])
            assert row["against_default"] == pytest.approx(row["ms"] / default["ms"])
            assert f"\n{row['name']} " in printed


def test_mutants_change_the_core_alone(tmp_path):
    source = tmp_path / "dpmcl"
    (source / "engine").mkdir(parents=True)
    text = '''"""Doc 1."""
def f(a: int = 1, *, b: "x | y" = None) -> int:
    """Doc 2 < 3."""
    if not a:
        raise ValueError("never", 2)
    return min(a, 3) + 4
'''
    (source / "engine" / "one.py").write_text(text)
    drawn = mutants.sample(source, 100, seed=0)
    assert {mutant.what for mutant in drawn} == {
        "1  ->  (2)",
        "not a  ->  (a)",
        'raise ValueError("never", 2)  ->  pass',
        "min(a, 3) + 4  ->  (min(a, 3) - 4)",
        "min  ->  (max)",
        "3  ->  (4)",
        "4  ->  (5)",
    }
    assert [mutant.text for mutant in mutants.sample(source, 3, seed=0)] == [
        mutant.text for mutant in drawn[:3]
    ]
