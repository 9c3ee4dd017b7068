"""What a method of one's own may do, each shown by a small one, from outside the package.

Every method runs looped, batched and interrupted: the engines agree, and a run that goes on ends
with the same bytes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import dpmcl
from conftest import same_bits, tiny_stream
from dpmcl import Draw, Method, Optimiser, Option, Phase, gradient
from dpmcl.core import keys, memory
from dpmcl.core.tree import leaves, tree_map
from dpmcl.data.splits import split
from dpmcl.exceptions import SpecError
from dpmcl.methods.er import ER
from dpmcl.methods.naive import Naive

SEEN: list[Any] = []
"""What a method tells its test, in this process and with the looped engine."""

ROWS = 36  # training rows of a task
SETTINGS = {
    "dtype": "float64",
    "workers": 1,
    "network.hidden": 8,
    "training.batch": 5,
    "training.updates": 6,
    "training.lr": 0.05,
}


def run(method, engine="looped", out=None, interrupted=None, **training):
    """A method on the tiny stream, two replicas: its record and its final parameters."""
    count = iter(range(10_000))

    def progress(*_):
        if next(count) == interrupted:
            raise KeyboardInterrupt

    settings = {**SETTINGS, **{f"training.{key}": value for key, value in training.items()}}
    SEEN.clear()
    result = dpmcl.run(
        tiny_stream(), methods=[method], replicas=2, settings=settings, engine=engine, out=out,
        progress=progress, checkpoint_seconds=0,
    )  # fmt: skip
    (record,), (theta,) = result.records.values(), result.theta.values()
    return record, theta


def spent(record):
    """The gradients evaluated for each replica."""
    first, second = record.work.values()
    assert first == second
    return first.gradient_evaluations


def assert_close(first, second):
    np.testing.assert_allclose(first[0].test.values, second[0].test.values, atol=1e-12)
    torch.testing.assert_close(first[1], second[1], rtol=1e-9, atol=1e-11)


def plus(first, second, factor=1.0):
    return tree_map(lambda a, b: a + factor * b, first, second)


@dataclass(frozen=True, kw_only=True)
class EWC(Method):
    """A quadratic penalty by the exact Fisher information, taken in one pass without a step."""

    strength: float = 1.0

    def start(self, theta, task):
        zero = tree_map(torch.zeros_like, theta)
        extra = {"anchor": theta, "fisher": zero, "gathered": zero}
        return super().start(theta, task)._replace(extra=extra)

    def phases(self, model, task):
        def train(state, batches, key):
            grads, J = gradient(model.cost)(state.theta, batches["new"], key[0])
            moved = plus(state.theta, state.extra["anchor"], -1.0)
            pull = tree_map(lambda f, m: self.strength * f * m, state.extra["fisher"], moved)
            return self.descend(state, plus(grads, pull), J)

        def gather(state, batches, key):
            batch = batches["rows"]

            def loss(theta, x, y):
                return model.losses(model.predict(theta, x[None]), y[None])[0]

            each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
            squares = tree_map(
                lambda g: (g.square() * batch.w.view(-1, *[1] * (g.dim() - 1))).sum(0),
                each(state.theta, batch.x, batch.y),
            )
            gathered = plus(state.extra["gathered"], squares)
            return state._replace(extra={**state.extra, "gathered": gathered})

        steps = -(-task.rows // self.batch)
        rows = Draw("new", self.batch, replace=False)
        return [
            Phase("train", self.updates_of(task), {"new": self.new_rows()}, train),
            Phase("fisher", steps, {"rows": rows}, gather),
        ]

    def end_of_task(self, state, model, task):
        fisher = plus(state.extra["fisher"], state.extra["gathered"], 1 / task.rows)
        zero = tree_map(torch.zeros_like, fisher)
        SEEN.append((model, state.theta, fisher, task))
        return state._replace(extra={"anchor": state.theta, "fisher": fisher, "gathered": zero})


@dataclass(frozen=True, kw_only=True)
class DERpp(Method):
    """Dark experience replay: logits are kept with rows that enter the memory as they are met."""

    alpha: float = 0.5

    def notes(self, model, state, batch):
        logits = model.predict(state.theta, batch.x)
        if not torch._C._functorch.is_batchedtensor(logits):
            SEEN.extend(("noted", *pair) for pair in zip(batch.row.tolist(), logits, strict=True))
        return {"logits": logits}

    def phases(self, model, task):
        def update(state, batches, key):
            b_N, b_P = batches["new"], batches["past"]
            if not torch._C._functorch.is_batchedtensor(b_P.x):
                kept = zip(b_P.row.tolist(), b_P.notes["logits"], b_P.w > 0, strict=True)
                SEEN.extend(("drawn", *pair) for pair in kept)

            def cost(theta):
                out = model.predict(theta, b_P.x, key[0])
                distance = (out - b_P.notes["logits"]).square().mean(1)
                return model.cost(theta, b_N, key[0]) + self.alpha * (distance * b_P.w).mean()

            grads, J = gradient(cost)(state.theta)
            return self.descend(state, grads, J)

        draws = {"new": self.new_rows(), "past": Draw("memory", self.batch)}
        return [Phase("train", self.updates_of(task), draws, update, remember="new")]


@dataclass(frozen=True, kw_only=True)
class MaskedER(Method):
    """The new task's rows compete with the new classes alone, as in ER-ACE."""

    stores = "after"

    def phases(self, model, task):
        def update(state, batches, key):
            def cost(theta):
                b_N, b_P = batches["new"], batches["past"]
                out = torch.where(task.new, model.predict(theta, b_N.x, key[0]), -1e9)
                seen = torch.where(task.seen, model.predict(theta, b_P.x, key[0]), -1e9)
                past = functional.cross_entropy(seen, b_P.y, reduction="none") * b_P.w
                return functional.cross_entropy(out, b_N.y) + past.mean()

            grads, J = gradient(cost)(state.theta)
            return self.descend(state, grads, J)

        draws = {"new": self.new_rows(), "past": Draw("memory", self.batch)}
        return [Phase("train", self.updates_of(task), draws, update)]


@dataclass(frozen=True, kw_only=True)
class Averaged(Naive):
    """Evaluated is a moving average of the parameters."""

    decay: float = 0.9

    def start(self, theta, task):
        return dpmcl.State(theta, self.rule.init(theta), theta)

    def phases(self, model, task):
        (plain,) = super().phases(model, task)

        def update(state, batches, key):
            after = plain.update(state, batches, key)
            return after._replace(extra=tree_map(
                lambda a, b: self.decay * a + (1 - self.decay) * b, after.extra, after.theta
            ))  # fmt: skip

        return [Phase("train", plain.updates, plain.draws, update)]

    def evaluated(self, state):
        return state._replace(theta=state.extra)


class Alone(Averaged):
    """With no inertia, the average is the model itself."""

    def evaluated(self, state):
        return state


@dataclass(frozen=True, kw_only=True)
class GDumb(Method):
    """Only stores, balanced by class; before each evaluation a network is trained on the memory."""

    stores = "after"

    def notes(self, model, state, batch):
        return {"label": batch.y}

    def policy(self, memory_, offer, key):
        """Of each class the first in a random order, then of each the second, ..."""
        label = torch.cat([memory_.notes["label"], offer.notes["label"]])
        held = torch.arange(len(memory_.position)) < memory_.filled
        present = torch.cat([held, offer.present])
        score = keys.scores(key, len(label)) >> 1
        earlier = (score < score[:, None]) & (label == label[:, None]) & present
        return memory.keep(memory_, offer, earlier.sum(1))

    def phases(self, model, task):
        return []

    def evaluation_phases(self, model, task):
        def update(state, batches, key):
            if not torch._C._functorch.is_batchedtensor(batches["held"].x):
                SEEN.append((task.number, batches["held"]))
            grads, J = gradient(model.cost)(state.theta, batches["held"], key[0])
            return self.descend(state, grads, J)

        draws = {"held": Draw("memory", self.memory, replace=False)}
        return [Phase("anew", self.updates, draws, update)]


@dataclass(frozen=True, kw_only=True)
class Descent(Optimiser):
    """theta - lr g, with a count of its steps."""

    def slots(self, parameter):
        return {"steps": torch.zeros((), dtype=torch.float64)}

    def rule(self, parameter, grad, slots):
        return parameter - self.lr * grad, {"steps": slots["steps"] + 1}


@dataclass(frozen=True, kw_only=True)
class ToStart(Option):
    """A penalty on the distance from the initial parameters."""

    strength: float = 0.1

    def gradient(self, theta, grads, start):
        return plus(grads, plus(theta, start, -1.0), self.strength)


@dataclass(frozen=True, kw_only=True)
class ShrinkAndPerturb(Option):
    """At each task the parameters shrink, and noise is added."""

    shrink: float = 0.5
    noise: float = 0.0

    def begin_task(self, theta, key):
        names = [(part, name) for part in theta for name in theta[part]]
        for lane, (part, name) in enumerate(names):
            leaf = theta[part][name]
            noise = keys.uniform(key, leaf.shape, lane).to(leaf.dtype) - 0.5
            theta = {**theta, part: {**theta[part], name: self.shrink * leaf + self.noise * noise}}
        return theta


@dataclass(frozen=True, kw_only=True)
class Pulled(Naive):
    """The penalty of `ToStart` in the method's own cost."""

    def start(self, theta, task):
        return super().start(theta, task)._replace(extra=theta)

    def phases(self, model, task):
        (plain,) = super().phases(model, task)

        def update(state, batches, key):
            def cost(theta):
                moved = leaves(plus(theta, state.extra, -1.0))
                return (
                    model.cost(theta, batches["new"], key[0])
                    + 0.2 * torch.stack([leaf.square().sum() for leaf in moved]).sum()
                )

            grads, J = gradient(cost)(state.theta)
            return self.descend(state, grads, J)

        return [Phase("train", plain.updates, plain.draws, update)]


SHRINK = {"name": f"{__name__}:ShrinkAndPerturb", "noise": 0.1}
CASES = {
    "exact Fisher": (EWC, {}),
    "notes and rows met on the way": (DERpp, {"passes": 2, "memory": 20}),
    "masks": (MaskedER, {"passes": 1}),
    "moving average": (Averaged, {"schedule": "cosine"}),
    "memory of its own": (GDumb, {"memory": 12}),
    "optimiser": (ER, {"optimiser": f"{__name__}:Descent"}),
    "weight decay and a schedule": (
        ER,
        {"optimiser": {"name": "adam", "weight_decay": 0.1}, "schedule": "cosine", "updates": 52},
    ),
    "options": (Naive, {"options": [{"name": f"{__name__}:ToStart"}, SHRINK], "updates": 52}),
}


@pytest.mark.parametrize("case", CASES)
def test_engines_agree_and_an_interrupted_run_ends_with_the_same_bytes(case, tmp_path):
    method, training = CASES[case]
    whole = run(method, "batched", **training)
    assert np.isfinite(whole[0].test.values[:, -1]).all()
    assert_close(run(method, "looped", **training), whole)
    if method is GDumb:  # which makes no updates that could be interrupted
        return
    for place in (1, 2):
        folder = tmp_path / str(place)
        with pytest.raises(KeyboardInterrupt):
            run(method, "batched", out=folder, interrupted=place, **training)
        again = run(method, "batched", out=folder, **training)
        assert np.array_equal(again[0].test.values, whole[0].test.values, equal_nan=True)
        assert same_bits(again[1], whole[1])
        assert again[0].work == whole[0].work


def test_a_pass_without_a_step_sees_every_row_once():
    """The Fisher information of the first task is that of a plain loop over its rows."""
    record, _ = run(EWC)
    model, theta, fisher, task = SEEN[0]
    assert (task.number, task.tasks, task.rows, task.input_shape) == (0, 3, ROWS, (2,))
    assert task.classes == ((0, 1), (2, 3), (4, 5))
    assert spent(record) == 3 * 6
    stream, expected = tiny_stream(), 0.0
    rows = split(stream, (0, 1), (0.6, 0.2, 0.2)).train.row[0, :ROWS]
    for row in rows.tolist():
        x, y = stream.x[[row]], stream.y[[row]]
        grads = torch.func.grad(lambda t, x=x, y=y: model.losses(model.predict(t, x), y)[0])(theta)
        expected += grads["prediction"]["2.weight"].square() / ROWS
    torch.testing.assert_close(fisher["prediction"]["2.weight"], expected)


def test_notes_come_back_with_the_rows_they_were_taken_of():
    run(DERpp, passes=1, memory=1000)
    noted, drawn, tasks = {}, [], tiny_stream().task[0]
    for what, row, logits, *present in SEEN:
        if what == "noted":
            noted.setdefault(row, []).append(logits)
        elif present[0]:
            assert any(torch.equal(logits, one) for one in noted[row])
            drawn.append((row, max(int(tasks[one]) for one in noted)))
    assert len(noted) > 3 * ROWS
    assert any(tasks[row] == newest == 0 for row, newest in drawn)  # before their task was over


def test_what_is_evaluated_is_the_method_s_to_say():
    plain, still = (run(method)[0].test.values for method in (Naive, Averaged))
    assert np.array_equal(run(Alone)[0].test.values, plain, equal_nan=True)
    assert not np.array_equal(still, plain, equal_nan=True)
    record, theta = run(GDumb, memory=12, updates=100)
    initial = run(GDumb, memory=12, updates=1)[1]
    assert same_bits(theta, initial)
    assert record.test.after[:, -1].max() < 0.2  # all tasks, from twelve rows
    assert record.test.after[:, 0, 0].max() < 0.2  # and the first one before others come
    assert spent(record) == 3 * 100


def test_a_policy_of_its_own_balances_the_memory_by_class():
    run(GDumb, memory=12)
    for task, batch in SEEN:
        count = torch.bincount(batch.y[batch.w > 0], minlength=6).tolist()
        classes = 2 * (task + 1)
        assert count == [12 // classes] * classes + [0] * (6 - classes)


def test_an_optimiser_of_one_s_own_is_found_by_its_name():
    own = run(Naive, optimiser=f"{__name__}:Descent")
    assert_close(own, run(Naive, optimiser="sgd"))


def test_an_option_s_penalty_is_one_in_the_cost():
    option = {"name": f"{__name__}:ToStart", "strength": 0.4}
    assert_close(run(Naive, optimiser="sgd", options=[option]), run(Pulled, optimiser="sgd"))


def test_an_option_begins_each_task():
    still = {"optimiser": "sgd", "lr": 1e-30}
    _, start = run(Naive, **still)
    _, shrunk = run(Naive, options=[f"{__name__}:ShrinkAndPerturb"], **still)
    for a, b in zip(leaves(start), leaves(shrunk), strict=True):
        torch.testing.assert_close(0.5**3 * a, b, rtol=1e-12, atol=0)
    _, noisy = run(Naive, options=[SHRINK], **still)
    assert not any(torch.equal(*pair) for pair in zip(leaves(shrunk), leaves(noisy), strict=True))


def test_what_is_not_understood_is_refused_by_name():
    with pytest.raises(SpecError, match="remember must name a draw of the new task's training"):
        Phase("train", 1, {"past": Draw("memory", 5)}, lambda *_: None, remember="past")
    with pytest.raises(SpecError, match="draws rows by chance; a pass without replacement"):
        run(GDumb, discount="exponential", discount_on="sampling")
    with pytest.raises(SpecError, match="option needs a name"):
        Naive(options=[{"strength": 1}])
