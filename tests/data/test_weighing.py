"""gamma in the draws: as weights of rows, and as the chance that a row is drawn."""

from dataclasses import replace

import pytest
import torch

from conftest import supply_of, tiny_model, tiny_run, tiny_stream, tiny_task
from dpmcl import plugins
from dpmcl.core import keys
from dpmcl.core.model import initial_weights
from dpmcl.core.tree import at, leaves, tree_map
from dpmcl.data import sampling
from dpmcl.data.sampling import Draw, Weighing, draw_rows
from dpmcl.discounts._discount import gamma
from dpmcl.engine import Batched, Looped
from dpmcl.exceptions import SpecError
from dpmcl.methods.er import ER

SEEDS = (0, 1, 2)
TASKS = 4
RATE = {"name": "exponential", "rate": 0.7}
DRAWS = {
    "new": Draw("new", 8),
    "past": Draw("memory", 50),
    "all": Draw("all", 50),
    "earlier": Draw("earlier", 50),
    "valid": Draw("all", 50, split="validation"),
    "valid past": Draw("memory", 50, split="validation"),
    "block": Draw("memory", 5, block=10),
}


def weighing(setting, task, on) -> Weighing:
    rule = plugins.from_setting("discount", setting)
    return Weighing(gamma(rule, task, torch.arange(TASKS)), on)


def drawn(weighing, task=3, steps=range(40), draws=DRAWS):
    """A task's draws, and the rows and the memory of the tasks before it that they were made of."""
    supply = supply_of(tiny_stream(TASKS), SEEDS, task, train=60, validation=60)
    supply = supply._replace(weighing=weighing)
    return draw_rows(draws, supply, (task, 0), steps), supply


# Weights


@pytest.mark.parametrize("by", ["age", "time"])
@pytest.mark.parametrize("task", [0, 2, 3])
def test_a_rows_weight_is_gamma_of_its_task_now(by, task):
    made, _ = drawn(weighing({**RATE, "by": by}, task, "weights"), task)
    plain, _ = drawn(None, task)
    stream = tiny_stream(TASKS)
    batches = made.batches(stream, torch.float64, 5, slice(None))
    for name in DRAWS:
        assert torch.equal(made.row[name], plain.row[name]), name  # which rows is not gamma's
        s = made.task[name] if by == "time" else task - made.task[name]
        expected = torch.exp(-0.7 * s.double()) * plain.present[name]
        torch.testing.assert_close(made.present[name], expected, rtol=1e-14, atol=0)
        assert torch.equal(batches[name].w, made.present[name][:, 5])
        replica_batch = made.batches(stream, torch.float64, 5, 1)[name]
        assert torch.equal(replica_batch.w, batches[name].w[1])
    for name in ("past", "earlier", "block"):
        assert bool((made.present[name] > 0).any()) == (task > 0)
    if task == 3:
        assert len(made.present["all"].unique()) == 4


# Sampling


def chi_square(rows, chances) -> tuple[float, float]:
    """The statistic of rows drawn by these chances, and what it is not to exceed (5 deviations)."""
    expected = chances / chances.sum() * len(rows)
    count = torch.bincount(rows, minlength=len(chances)).double()
    assert not count[expected == 0].any()
    possible = expected > 0
    statistic = float(((count - expected).square()[possible] / expected[possible]).sum())
    free = int(possible.sum()) - 1
    return statistic, free + 5 * (2 * free) ** 0.5


@pytest.mark.parametrize(
    "setting", [RATE, {"name": "power", "p": 2.0, "by": "time"}, {"name": "window", "width": 2}]
)
def test_rows_are_drawn_as_often_as_gamma_says(setting):
    now = weighing(setting, 3, "sampling")
    made, supply = drawn(now, steps=range(200))
    pool = supply.splits.train
    for replica in range(len(SEEDS)):
        position = supply.held["train"].position[replica]
        stored = torch.zeros(pool.row.shape[1], dtype=torch.float64)
        stored[position] = now.gamma[pool.task[replica, position]]
        positions = torch.arange(pool.row.shape[1])
        offset = pool.offset[replica]
        chances = {
            "past": stored,
            "block": stored,
            "all": now.gamma[pool.task[replica]],
            "earlier": now.gamma[pool.task[replica]] * (positions < offset[3]),
        }
        number = torch.full((len(tiny_stream(TASKS).y),), -1)
        number[pool.row[replica]] = positions
        for name, chance in chances.items():
            rows = number[made.row[name][replica].flatten()]
            assert len(rows) == 10_000
            statistic, limit = chi_square(rows, chance)
            assert statistic < limit, (replica, name)
            uniform, _ = chi_square(rows, (chance > 0).double())
            assert setting["name"] == "window" or uniform > 2 * limit
        assert made.present["past"].all()
        assert made.present["all"].all()
    assert torch.equal(made.row["new"], drawn(None, steps=range(200))[0].row["new"])


def test_the_edges_between_chances_belong_to_the_item_that_follows(monkeypatch):
    """Met once in a billion draws: whatever is drawn, no item of chance 0 is."""
    chance = torch.tensor([[0.0, 1.0, 0.0, 0.5, 0.0]], dtype=torch.float64)
    unit = (2**31 - 1) // 5
    edge = torch.tensor([[[0, unit - 1, unit, unit + unit // 2 - 1]]])
    monkeypatch.setattr(keys, "integers", lambda *_: edge)
    context = sampling._Context(torch.zeros(1, 1, 2, dtype=torch.int64), (0, 0), torch.zeros(1), 0)
    index, present = sampling._pick_weighted(chance, context, 4)
    assert index.tolist() == [[[1, 1, 3, 3]]]
    assert present.all()


def test_rows_of_weight_0_are_never_drawn_and_absent_where_all_weights_are_0():
    """By age a window of 1 leaves nothing of the tasks before the new one."""
    window = {"name": "window", "width": 1}
    for by, only in (("age", 3), ("time", 0)):
        made, _ = drawn(weighing({**window, "by": by}, 3, "sampling"))
        assert made.task["all"].unique().tolist() == [only]
        assert made.task["valid"].unique().tolist() == [only]
        if by == "time":
            for name in ("past", "valid past"):
                assert made.task[name].unique().tolist() == [0]
            assert made.present["past"].all()
            continue
        stream = tiny_stream(TASKS)
        for name in ("past", "earlier", "block"):
            assert not made.present[name].any()
            assert 0 <= int(made.row[name].min()) <= int(made.row[name].max()) < len(stream.x)
            assert (made.batches(stream, torch.float64, 0, slice(None))[name].w == 0).all()
    empty, _ = drawn(weighing(RATE, 0, "sampling"), task=0)
    assert not empty.present["past"].any()
    assert empty.present["all"].all()


# In runs

SMALL = {"updates": 5, "batch": 8, "memory": 40, "lr": 0.05}
METHODS = {"dpmcl": {"zeta": 2}, "oml": {}}


@pytest.mark.parametrize("on", ["weights", "sampling"])
@pytest.mark.parametrize("name", METHODS)
def test_weights_of_one_are_no_discount_to_the_byte_and_engines_agree(name, on):
    """A window wider than the stream goes the way of every gamma; the default skips it."""
    method = plugins.find("method", name)(**SMALL, **METHODS[name])
    plain = tiny_run(method)
    wide = replace(method, discount={"name": "window", "width": 9}, discount_on=on)
    torch.testing.assert_close(plain.theta, tiny_run(wide).theta, rtol=0, atol=0)
    discounted = replace(method, discount=RATE, discount_on=on)
    runs = [
        tiny_run(discounted, engine=e).theta for e in (Looped(), Batched(), Batched(static=True))
    ]
    for theta in runs[1:]:
        torch.testing.assert_close(runs[0], theta, rtol=1e-10, atol=1e-10)
    pairs = zip(leaves(plain.theta), leaves(runs[0]), strict=True)
    assert any(not torch.equal(a, b) for a, b in pairs)


def test_an_update_under_weights_is_one_on_the_weighted_mean_of_the_batch():
    """ER by hand: gradient descent on sum(gamma l) / sum(gamma), and on nothing of weight 0."""
    stream = tiny_stream(TASKS)
    model, now = tiny_model(stream), weighing(RATE, 3, "weights")
    method = ER(optimiser="sgd", lr=0.1, updates=1, batch=50)
    (phase,) = method.phases(model, tiny_task())
    made, _ = drawn(now, draws=phase.draws, steps=range(1))
    theta = initial_weights(model, SEEDS)
    for replica in range(len(SEEDS)):
        replica_theta = at(theta, replica)
        batches = made.batches(stream, torch.float64, 0, replica)
        after = phase.update(
            method.start(replica_theta, tiny_task()), batches, made.key[replica, 0]
        ).theta
        row = made.row["replay"][replica, 0]

        def cost(theta, row=row):
            losses = model.losses(model.predict(theta, stream.x[row]), stream.y[row])
            gamma = torch.exp(-0.7 * (3 - stream.y[row] // 2).double())
            return (gamma * losses).sum() / gamma.sum()

        grads = torch.func.grad(cost)(replica_theta)
        expected = tree_map(lambda p, g: p - 0.1 * g, replica_theta, grads)
        torch.testing.assert_close(after, expected, rtol=1e-12, atol=1e-14)


# What a run makes of gamma


def test_only_ratios_count_so_no_late_task_vanishes():
    rule = plugins.from_setting("discount", {"name": "exponential", "rate": 0.5, "by": "time"})
    weights = sampling.task_weights(rule, 400, 401)
    assert float(weights.max()) == 1
    assert float(weights.to(torch.float32).min()) > 0
    assert torch.equal(weights.sort(descending=True).values, weights)


def test_rows_that_a_blurred_stream_brings_early_count_as_new():
    for setting in ("exponential", "window", {"name": "power", "by": "time"}):
        weights = sampling.task_weights(plugins.from_setting("discount", setting), 1, 4)
        assert weights[2] == weights[1] > 0


def test_a_draw_like_another_must_be_of_its_kind():
    for like in (Draw("new", 8, like="past"), Draw("new", 4, like="new"), Draw("new", 8, like="x")):
        with pytest.raises(SpecError, match="Draw 'next' must be like another"):
            drawn(None, draws={**DRAWS, "next": like})
