"""Benchmarks: complete and consistent rows, fair rounds, right sums. No claim about speed."""

import json
import statistics

import pytest
import torch

from dpmcl import bench
from dpmcl.bench import engines, measure, problems, report, table1
from dpmcl.bench.measure import Contestant, Timing
from dpmcl.engine import Looped
from dpmcl.exceptions import DpmclError, SpecError

CPU = torch.device("cpu")
TINY = {"replicas": (1, 2), "repeats": 2, "seconds": 0.002, "warm_up": 0.0, "device": "cpu"}


class Fake:
    """A contestant's run that takes a set time an update, and writes down its calls."""

    def __init__(self, each: float, calls: list, name: str):
        self.each, self.calls, self.name = each, calls, name

    def __call__(self, updates: int) -> float:
        self.calls.append((self.name, updates, torch.get_num_threads()))
        return self.each * updates


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A tiny benchmark of SINE: (the report, its file)."""
    path = tmp_path_factory.mktemp("bench") / "new" / "bench.json"
    return bench.bench(["sine"], **TINY, out=path), path


@pytest.fixture(scope="module")
def mnist():
    return problems.problem("mnist", CPU)


def test_a_report_has_a_row_for_every_contestant(found):
    rows = [row for row in found[0]["rows"] if row["kind"] != "avalanche"]
    forms = ["looped", "batched R=1", "batched R=2"]
    runs = ["engine=looped R=2", "engine=batched R=2, auto"]
    plain = ["plain loop, 1 thread (default)", "plain loop, 1 thread"]
    expected = [
        name
        for method in ("er", "dpmcl")
        for name in [*plain, *(f"{method} {form}" for form in [*forms, *runs])]
    ]
    assert [row["name"] for row in rows] == expected
    assert [row["replicas"] for row in rows[:7]] == [1, 1, 1, 1, 2, 2, 2]
    assert {row["threads"] for row in rows} == {1}


def test_rows_agree_with_their_repeats(found):
    for row in found[0]["rows"]:
        assert len(row["repeats"]) == TINY["repeats"]
        assert min(row["repeats"]) > 0
        assert row["ms"] == statistics.median(row["repeats"])


def test_ratios_are_against_the_plain_loops_of_the_same_rounds(found):
    for method in ("er", "dpmcl"):
        rows = [row for row in found[0]["rows"] if row["rounds"] == method]
        default, one_thread = rows[0]["ms"], rows[1]["ms"]
        for row in rows:
            assert row["against_default"] == pytest.approx(row["ms"] / default)
            assert row["against_one_thread"] == pytest.approx(row["ms"] / one_thread)


def test_the_verdict_compares_what_runs_can_be_told_to_use(found):
    for one, method in zip(found[0]["verdicts"], ("er", "dpmcl"), strict=True):
        runs = {
            row["engine"]: row["ms"]
            for row in found[0]["rows"]
            if row["kind"] == "run" and row["method"] == method
        }
        assert set(runs) == {"looped", "batched"}
        assert (one["method"], one["auto"], one["replicas"]) == (method, "batched", 2)
        assert one["auto_ms"] == runs["batched"]
        assert one["fastest_ms"] == min(runs.values()) == runs[one["fastest"]]


def test_the_file_holds_the_report_with_device_versions_and_commit(found):
    written, path = found
    read = json.loads(path.read_text("utf-8"))
    assert read == json.loads(json.dumps(written))
    machine = read["machine"]
    assert machine["device"] == "cpu"
    assert machine["torch"] == torch.__version__
    assert {"commit", "dpmcl", "python", "avalanche", "cores", "date"} <= set(machine)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_table_names_all_rows_and_what_auto_would_choose(found):
    text = bench.text(found[0])
    for row in found[0]["rows"]:
        assert f"\n{row['name']} " in text
    assert "sine: sinenet, batch 64" in text
    assert "er, 2 replicas: auto is batched" in text
    assert torch.__version__ in text


def test_the_table_says_where_threads_were_in_each_others_way(found):
    slow = json.loads(json.dumps(found[0]))
    for row in slow["rows"]:
        row["against_one_thread"] = 1.0
    assert "threads wait for each other" not in bench.text(slow)
    slow["rows"][0]["against_one_thread"] = 30.0
    assert "up to 30.0 times as long" in bench.text(slow)


def test_a_warm_up_lasts():
    calls = []
    measure.updates_for(Fake(1.0, calls, "a"), 1.0, warm_up=0.05)
    assert len(calls) > 10  # no time passes in them
    assert {updates for _, updates, _ in calls} == {1}


def test_contestants_take_turns():
    calls = []
    names = ("a", "b", "c")
    contestants = [Contestant(name, Fake(0.25, calls, name)) for name in names]
    timings = measure.measure(contestants, 3, 1.0)
    assert [name for name, _, _ in calls[-9:]] == [*names, *names, *names]
    assert {updates for _, updates, _ in calls[-9:]} == {4}
    assert [timing.updates for timing in timings] == [4, 4, 4]


def test_times_are_per_update_and_replica():
    (timing,) = measure.measure([Contestant("a", Fake(0.01, [], "a"), replicas=5)], 2, 0.1)
    assert timing.repeats == pytest.approx((2.0, 2.0))
    assert timing.ms == pytest.approx(2.0)
    assert Timing(timing.contestant, 1, (1.0, 9.0, 2.0)).ms == 2.0


def test_threads_are_the_contestants_own_and_put_back():
    calls, before = [], torch.get_num_threads()
    measure.measure([Contestant("a", Fake(1.0, calls, "a"), threads=2)], 1, 1.0)
    assert {number for _, _, number in calls} == {2}
    assert torch.get_num_threads() == before


def test_progress_counts_warm_up_and_every_timing():
    seen = []
    contestants = [Contestant("a", Fake(1.0, [], "a")), Contestant("b", Fake(1.0, [], "b"))]
    measure.measure(contestants, 2, 1.0, lambda done, total: seen.append((done, total)))
    assert seen == [(k, 6) for k in range(1, 7)]


@pytest.mark.parametrize(("each", "updates"), [(10.0, 1), (1.0, 1), (0.1, 10), (0.003, 333)])
def test_a_timing_has_as_many_updates_as_fill_its_time(each, updates):
    calls = []
    assert measure.updates_for(Fake(each, calls, "a"), 1.0) == updates
    assert calls[-1][1] == updates


def test_a_heavier_contestant_is_timed_longer():
    contestants = [
        Contestant("a", Fake(0.1, [], "a")),
        Contestant("b", Fake(0.1, [], "b"), weight=3.0),
    ]
    assert [timing.updates for timing in measure.measure(contestants, 1, 1.0)] == [10, 30]


def test_a_clock_that_stands_still_ends_the_search():
    assert measure.updates_for(lambda _: 0.0, 1.0) <= 10_000_000


@pytest.mark.parametrize("name", problems.NETWORKS)
def test_problems_have_the_papers_shapes_and_settings(name):
    shapes = {"sine": (3,), "mnist": (1, 28, 28), "omniglot": (1, 28, 28), "cifar10": (3, 28, 28)}
    outputs = {"sine": 100, "mnist": 10, "omniglot": 50, "cifar10": 10}
    rows = {"sine": 26_700, "mnist": 70_000, "omniglot": 1000, "cifar10": 60_000}
    batch = {"sine": 64, "mnist": 32, "omniglot": 8, "cifar10": 512}
    made = problems.problem(name, CPU)
    assert tuple(made.stream.x.shape[1:]) == shapes[name]
    assert (made.stream.outputs, made.rows) == (outputs[name], rows[name])
    assert {made.method(method).batch for method in ("er", "dpmcl")} == {batch[name]}
    assert made.stream.x.dtype == (torch.float32 if name == "sine" else torch.uint8)


def test_updates_are_made_on_the_state_and_start_anew_each_time():
    seen = []

    class Spy(Looped):
        def advance(self, update, state, chunk, stream, dtype):
            after = super().advance(update, state, chunk, stream, dtype)
            seen.append((state.theta, chunk, after.theta))
            return after

    made = problems.problem("sine", CPU)
    run = engines.Updates(made, made.method("er"), 0, Spy(), 2)
    assert run(60) > 0
    assert run(1) > 0
    (first, fifty, middle), (second, ten, _), (again, one, _) = seen
    assert [fifty.steps, ten.steps, one.steps] == [50, 10, 1]
    assert second is middle
    assert again is first
    weight = [theta["prediction"]["0.weight"] for theta in (first, middle)]
    assert weight[0].shape[0] == 2
    assert not torch.equal(*weight)
    assert fifty.row["replay"].shape == (2, 50, 64)
    assert bool(fifty.present["replay"].all())
    assert not torch.equal(fifty.row["replay"][0], fifty.row["replay"][1])


@pytest.mark.parametrize(
    ("method", "count"),
    [
        ("er", {0: 3000}),  # 10 tasks of 300
        ("dpmcl", {0: 3000}),
        ("oml", {0: 1500, 1: 1500}),
    ],
)
def test_table_1_counts_what_the_paper_prints(mnist, method, count):
    assert table1.updates(mnist, method) == count


def test_table_1_counts_the_rows_that_are_evaluated(mnist):
    # 1400 test rows a task: all ten before the first, then one more task after each.
    assert table1.evaluated(mnist) == pytest.approx(1400 * (10 + 55))


def test_table_1_multiplies_times_by_counts(mnist):
    def timing(ms, **facts):
        return Timing(Contestant("", Fake(0, [], ""), facts={"method": "oml", **facts}), 1, (ms,))

    cell = table1.estimate(
        mnist,
        [
            timing(2.0, kind="phase", phase=0),
            timing(4.0, kind="phase", phase=1),
            timing(100.0, kind="evaluation", rows=1000),
        ],
    )
    assert (cell["network"], cell["method"], cell["updates"]) == ("mnist", "oml", 3000)
    assert cell["training_s"] == pytest.approx(50 * (1500 * 0.002 + 1500 * 0.004))
    assert cell["evaluation_s"] == pytest.approx(50 * 91_000 * 0.0001)
    assert cell["seconds"] == cell["training_s"] + cell["evaluation_s"]


def test_table_1_is_added_up_and_says_what_it_was_scaled_from():
    tiny = {**TINY, "replicas": (2,), "repeats": 1}
    written = bench.bench("sine", **tiny, study="table1", methods=["naive", "anml"])
    assert [row["name"] for row in written["rows"]] == [
        "naive",
        "naive, evaluation",
        "anml meta",
        "anml grad",
        "anml, evaluation",
    ]
    seconds = {cell["method"]: cell["seconds"] for cell in written["cells"]}
    lines = [line.split("  ") for line in bench.text(written).splitlines()]
    cells = {line[0]: line[-1].strip() for line in lines}
    assert cells["naive"] == report.duration(seconds["naive"])
    assert cells["all"] == report.duration(sum(seconds.values()))
    assert "For 50 replicas, scaled from 2:" in bench.text(written)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"networks": ["mnits"]}, "No network 'mnits'. Did you mean 'mnist'?"),
        ({"networks": []}, "needs a network"),
        ({"replicas": (0, 5)}, "replicas must be whole numbers from 1, got [0, 5]."),
        ({"replicas": ()}, "replicas must be"),
        ({"repeats": 0}, "repeats must be at least 1, got 0."),
        ({"seconds": 0.0}, "seconds must be above 0, got 0.0."),
        ({"warm_up": -1.0}, "warm_up must be 0 or more, got -1.0."),
        ({"methods": ["err"]}, "No method 'err'. Did you mean 'er'?"),
        ({"study": "table2"}, "No study 'table2'. Did you mean 'table1'?"),
    ],
)
def test_bad_input_is_one_line(wrong, line):
    with pytest.raises(SpecError) as error:
        bench.bench(**{"networks": "sine", **TINY, **wrong})
    assert line in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["file/bench.json", ""])
def test_a_report_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path, name):
    (tmp_path / "file").write_text("in the way")

    def watch(*_):
        raise AssertionError("it measures")

    with pytest.raises(DpmclError) as error:
        bench.bench("sine", **TINY, out=tmp_path / name, watch=watch)
    assert "\n" not in str(error.value)
    assert "trial" not in str(error.value)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_missing_gpu_is_one_line():
    with pytest.raises(SpecError, match="needs a CUDA GPU"):
        bench.bench("sine", **{**TINY, "device": "cuda"})


def test_replicas_are_read_from_numbers_between_commas():
    assert bench.numbers("1,5, 10") == (1, 5, 10)
    with pytest.raises(SpecError, match="whole numbers"):
        bench.numbers("1,x")


def test_a_fuller_device_shows_in_the_row():
    class Shrinking(Looped):
        held = 8

        def at_once(self, replicas):
            return min(replicas, self.held)

    engine = Shrinking()
    note = engines._note(engine, 8)
    assert note() == ""
    engine.held = 4
    assert note() == "in groups of 4, memory did not hold more"


@pytest.mark.parametrize("name", ["sine", "mnist"])
def test_avalanche_makes_as_many_updates_as_it_is_asked_for(name, monkeypatch):
    pytest.importorskip("avalanche")
    from dpmcl.bench import avalanche

    steps = []
    rule = torch.optim.Adagrad.step
    monkeypatch.setattr(
        torch.optim.Adagrad, "step", lambda *args, **kw: (steps.append(1), rule(*args, **kw))[1]
    )
    naive, replay = avalanche.contestants(problems.problem(name, CPU))
    assert [naive.name, replay.name] == ["avalanche naive", "avalanche replay"]
    assert naive.run(3) > 0
    assert len(steps) == 3
    steps.clear()
    assert replay.run(3) > 0
    assert len(steps) == 3 + 32  # the experience before, which fills its memory
