"""Scenarios: from labelled rows to tasks, and nothing lost or doubled on the way."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import SHARES
from dpmcl.data.labelled import Labelled, from_arrays
from dpmcl.data.scenario import ScenarioSettings, plan
from dpmcl.data.splits import split
from dpmcl.data.stream import Stream
from dpmcl.exceptions import DataError, DpmclError, SpecError

PARTS = ("train", "validation", "test")


def labelled(y, task=None, shape=(2,)) -> Labelled:
    """Rows that can be told apart: row i holds the number i."""
    x = np.arange(len(y), dtype=np.float32).reshape(-1, *[1] * len(shape))
    return from_arrays(np.broadcast_to(x, (len(y), *shape)).copy(), y, task, name="made")


def made(y, task=None, shape=(2,), **scenario):
    return plan(labelled(y, task, shape), ScenarioSettings(**scenario))


def by_task(plan) -> dict[str, list[int]]:
    """Pool rows of each task, by the task's name."""
    return {name: plan.row[plan.task == k].tolist() for k, name in enumerate(plan.tasks)}


# ---- what each scenario makes --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "scenario", "tasks"),
    [
        ([10, 9, 100, 9], {}, {"9": [1, 3], "10": [0], "100": [2]}),
        (
            list("abcdefg"),
            {"classes_per_task": [1, 4, 2]},
            {"a": [0], "b, c, d, e": [1, 2, 3, 4], "f, g": [5, 6]},
        ),
        (
            list("aaabbaaaabb"),
            {"scenario": "instance-incremental", "tasks": 2},
            {"part 0": [0, 1, 2, 3, 4, 5], "part 1": [6, 7, 8, 9, 10]},
        ),
        (
            [0.1, 0.2, 0.3, 0.4, 0.5, 0.6],
            {"scenario": "instance-incremental", "tasks": 3},
            {"part 0": [0, 1], "part 1": [2, 3], "part 2": [4, 5]},
        ),
    ],
)
def test_tasks_and_their_rows(y, scenario, tasks):
    plan = made(y, **scenario)
    assert list(by_task(plan).items()) == list(tasks.items())
    assert plan.view is plan.within is None


@pytest.mark.parametrize(
    ("classes", "order"),
    [
        (("T-shirt/top", "Trouser", "Pullover"), "of the data set"),
        (("-2", "9", "10"), "by number"),
        (("a/y", "a b/x", "b"), "alphabetical"),  # folder by folder
    ],
)
def test_the_line_says_which_order_it_is(classes, order):
    """A set that orders its own classes keeps that order, and it is not called alphabetical."""
    data = replace(labelled([0, 1, 2]), classes=classes)
    made_of_classes = plan(data, ScenarioSettings())
    assert made_of_classes.tasks == classes
    assert made_of_classes.scenario == f"class-incremental, 1 class a task, order {order}"
    of_tasks = replace(labelled([0, 1, 2], [0, 1, 2]), tasks=classes)
    line = plan(of_tasks, ScenarioSettings(blur=0.25)).scenario
    blurred = "25% of the training rows arrive in neighbours"
    assert line == f"given, the data's own tasks, order {order}, {blurred}"


def test_given_tasks_are_taken_as_the_data_say_or_set_aside():
    y, task = list("abab"), ["may", "april", "april", "may"]
    assert by_task(made(y, task)) == {"april": [1, 2], "may": [0, 3]}
    assert by_task(made(y, task, order="appearance", tasks=1)) == {"may": [0, 3]}
    assert made(y, task, scenario="class-incremental").tasks == ("a", "b")


def test_task_incremental_looks_for_the_answer_within_the_task():
    within = made(list("abcd"), scenario="task-incremental", classes_per_task=2).within
    assert within.tolist() == [[True, True, False, False], [False, False, True, True]]
    within = made(list("abca"), task=[0, 0, 1, 1], scenario="task-incremental").within
    assert within.tolist() == [[True, True, False], [True, False, True]]


def test_shuffled_instances_are_other_rows_of_every_class():
    y = ["a"] * 7 + ["b"] * 4
    plan, again, other = (
        made(y, scenario="instance-incremental", tasks=2, order="shuffled", order_seed=seed)
        for seed in (1, 1, 2)
    )
    assert plan.row.tolist() == again.row.tolist() != other.row.tolist()
    assert sorted(plan.row[0].tolist()) == list(range(11))
    for rows in by_task(plan).values():
        assert {y[row] for row in rows} == {"a", "b"}


def test_domain_incremental_gives_every_task_all_rows_through_its_own_view():
    stream = Stream.from_arrays(
        torch.rand(6, 5), list("ababab"), scenario="domain-incremental", tasks=3, order_seed=4
    )
    assert stream.row.tolist() == [list(range(6)) * 3]
    assert stream.repeats
    row, task = torch.arange(6), torch.tensor([0, 1, 2, 0, 1, 2])
    x = stream.batch(row, row >= 0, task, torch.float32).x
    assert torch.equal(x[task == 0], stream.x[[0, 3]])
    assert torch.equal(x.sort(1).values, stream.x.sort(1).values)
    assert not torch.equal(x[task == 1], stream.x[[1, 4]])
    turned = {"scenario": "domain-incremental", "domain": "rotated", "tasks": 3, "rotation": 90.0}
    names = made(list("ab"), shape=(1, 4, 4), **turned).tasks
    assert names == ("0 degrees", "45 degrees", "90 degrees")


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scenario", "line"),
    [
        ({"classes_per_task": 3}, r"must add up to the 4 classes, got tasks of \[3\], .* 3; give"),
        ({"classes_per_task": [2, 1]}, r"must add up to the 4 classes, got tasks of \[2, 1\]"),
        ({"tasks": 5}, "tasks must be at most 4 for stream 'made', got 5"),
        ({"order": ["a", "b", "c"]}, "must list every class once, and no other; correct 'd'"),
        ({"scenario": "given"}, "'made' brings none"),
        ({"scenario": "domain-incremental"}, "set stream.tasks"),
        ({"scenario": "task-incremental"}, r"task 0 \('a'\) has one"),
        ({"scenario": "domain-incremental", "tasks": 2, "order": "shuffled"}, "order = 'shuffled'"),
        ({"scenario": "instance-incremental", "tasks": 3}, "class 'a' of 'made' has 2 for 3 tasks"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_way_out(scenario, line):
    with pytest.raises(DpmclError, match=line):
        made(list("abcd") * 2, **scenario)


def test_regression_has_no_classes():
    with pytest.raises(SpecError, match="has no classes to make tasks of; name a task column"):
        made([0.5, 1.5])


# ---- whatever the labels -------------------------------------------------------------------------


@st.composite
def problems(draw):
    few = draw(st.sampled_from([1, 3, 3, 3]))  # most sets can be split, some cannot
    counts = draw(st.lists(st.integers(few, 50), min_size=1, max_size=30))
    y = draw(st.permutations([7 * c - 20 for c, n in enumerate(counts) for _ in range(n)]))
    left, sizes = len(counts), []
    while left:
        sizes.append(draw(st.integers(1, left)))
        left -= sizes[-1]
    order = draw(st.sampled_from(["alphabetical", "appearance", "shuffled", "listed"]))
    blur = draw(st.sampled_from([0.0, 0.0, 0.3])) if len(sizes) > 1 else 0.0
    return y, sizes, order, draw(st.integers(0, 5)), blur, draw(st.integers(0, 2**62))


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problems())
def test_every_row_is_in_one_task_and_one_split_or_is_refused(problem):
    y, sizes, order, order_seed, blur, seed = problem
    shown = [str(label) for label in y]
    counts = Counter(shown)
    scenario: dict = {"classes_per_task": tuple(sizes), "blur": blur}
    scenario["order"] = sorted(counts, key=hash) if order == "listed" else order
    if order == "shuffled":
        scenario["order_seed"] = order_seed
    x = np.arange(len(y), dtype=np.float32)[:, None]
    stream = Stream.from_arrays(x, y, **scenario)
    again = Stream.from_arrays(x, y, **scenario)
    assert again.digest() == stream.digest()

    # Labels map back, and the class numbers have no gap.
    assert [stream.classes[c] for c in stream.y.tolist()] == shown
    assert sorted(stream.classes) == sorted(counts)

    # Every row is in one task, whole classes at a time, in the order that was asked for.
    assert sorted(stream.row[0].tolist()) == list(range(len(y)))
    task_of = dict(zip(stream.row[0].tolist(), stream.task[0].tolist(), strict=True))
    of_class = {name: {task_of[i] for i, s in enumerate(shown) if s == name} for name in counts}
    assert all(len(tasks) == 1 for tasks in of_class.values())
    assert Counter(k for (k,) in of_class.values()) == Counter(dict(enumerate(sizes)))
    task_order = [next(iter(of_class[name])) for name in {
        "alphabetical": list(stream.classes), "appearance": list(dict.fromkeys(shown)),
        "listed": scenario["order"],
    }.get(order, [])]  # fmt: skip
    assert task_order == sorted(task_order)

    if min(counts.values()) < 3:
        least = {name for name, n in counts.items() if n < 3}
        with pytest.raises(DataError) as caught:
            split(stream, [seed], SHARES)
        assert any(f"class '{name}'" in str(caught.value) for name in least)
        return
    splits, twice = (split(stream, [seed, 1], SHARES) for _ in range(2))
    for replica in range(2):
        rows = [r for part in PARTS for r in splits.named(part).row[replica].tolist()]
        assert sorted(rows) == list(range(len(y)))
        for part in PARTS:
            own, offset = splits.named(part), splits.named(part).offset[replica]
            assert [task_of[r] for r in own.row[replica].tolist()] == own.task[replica].tolist()
            assert int(offset[-1]) == own.row.shape[1]
            assert {shown[r] for r in own.row[replica].tolist()} == set(counts)
            assert (offset.diff() > 0).all()
            assert torch.equal(own.row, twice.named(part).row)
