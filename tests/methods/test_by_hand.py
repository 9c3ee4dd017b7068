"""One update of each method beside the paper's, against the same worked out in NumPy.

The network is y = V tanh(W x + b) + c; its derivatives are written out below. Each case is a
function of NumPy arrays that does what the method's docstring says, by plain gradient descent.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from conftest import own_rows_stream, same_bits, tiny_run
from dpmcl import plugins
from dpmcl.core import keys
from dpmcl.core.batch import Batch
from dpmcl.core.memory import Offer, empty
from dpmcl.core.model import Model
from dpmcl.core.tree import at, leaves, rebuilt, stack, tree_map
from dpmcl.data.stream import Stream
from dpmcl.data.task_info import TaskInfo
from dpmcl.exceptions import SpecError
from dpmcl.methods._fisher import sample_targets

LR, WIDTH, ROWS = 0.1, 3, 4
KEY = torch.tensor([[1, 2], [3, 4], [5, 6], [7, 8]])


def find(name):
    return plugins.find("method", name)


def network():
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh()), nn.Linear(5, WIDTH)


def model(kind):
    example = torch.ones(2, 2, dtype=torch.float64)
    return Model.build(network, kind, example, WIDTH, dtype=torch.float64)


def task(kind, number=1):
    seen = torch.tensor([True, True, kind == "regression"])
    return TaskInfo(
        number=number, tasks=3, input_shape=(2,), outputs=WIDTH, kind=kind, rows=8, rows_seen=16,
        classes=((0,), (1,), (2,)) if kind == "classification" else ((),) * 3,
        seen=seen, new=torch.tensor([False, True, False]),
    )  # fmt: skip


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def theta_of(seed):
    """(W, b, V, c)."""
    return [random(5, 2, seed=seed), random(5, seed=seed + 1), random(WIDTH, 5, seed=seed + 2),
            random(WIDTH, seed=seed + 3)]  # fmt: skip


def tree(arrays):
    like = {"representation": {"0.weight": 0, "0.bias": 0}, "prediction": {"weight": 0, "bias": 0}}
    return rebuilt(like, [torch.tensor(array) for array in arrays])


class Rows:
    """A batch as arrays: inputs, targets (classes or values), weights, task numbers, notes."""

    def __init__(self, kind, seed, w=(1, 1, 1, 1), y=None):
        self.x, self.w = random(len(w), 2, seed=seed), np.array(w, dtype=float)
        classes = np.arange(len(w)) % 2 if y is None else np.array(y)
        self.y = classes if kind == "classification" else random(len(w), WIDTH, seed=seed + 9)
        self.task = np.arange(len(w)) % 2
        self.z = random(len(w), WIDTH, seed=seed + 5)

    def batch(self):
        leaf = map(torch.tensor, (self.x, self.y, self.w, self.task))
        return Batch(*leaf, notes={"outputs": torch.tensor(self.z)})

    def at(self, index):
        out = object.__new__(Rows)
        out.__dict__.update({name: value[index] for name, value in self.__dict__.items()})
        return out


def joined(first, second):
    out = object.__new__(Rows)
    pairs = ((name, first.__dict__[name], second.__dict__[name]) for name in first.__dict__)
    out.__dict__.update({name: np.concatenate(pair) for name, *pair in pairs})
    return out


def f(theta, x):
    W, b, V, c = theta
    return np.tanh(x @ W.T + b) @ V.T + c


def pulled_back(theta, x, d):
    """The gradient of a scalar by (W, b, V, c), of its derivatives d by the outputs."""
    W, b, V, _ = theta
    a = np.tanh(x @ W.T + b)
    da = (d @ V) * (1 - a**2)
    return [da.T @ x, da.sum(0), d.T @ a, d.sum(0)]


def softmax(f):
    e = np.exp(f - f.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def losses(f, y):
    """Each row's loss, and its derivatives by the outputs."""
    if y.ndim == 2:
        return ((f - y) ** 2).mean(1), 2 * (f - y) / WIDTH
    p, one_hot = softmax(f), np.eye(WIDTH)[y]
    return -np.log(p[np.arange(len(y)), y]), p - one_hot


def J(theta, rows, each=losses):
    """The weighted mean of a loss, and its gradient."""
    loss, d = each(f(theta, rows.x), rows.y)
    share = rows.w / max(rows.w.sum(), 1)
    return (loss * share).sum(), pulled_back(theta, rows.x, d * share[:, None])


def distance(theta, rows, z, counts=None):
    """The weighted mean of the squared distance of outputs to z, and its gradient."""
    counts = np.ones_like(z) if counts is None else counts
    weight = counts / counts.sum(1, keepdims=True)
    return J(theta, rows, lambda f, _: (((f - z) ** 2 * weight).sum(1), 2 * (f - z) * weight))


def plus(first, second, factor=1.0):
    return [a + factor * b for a, b in zip(first, second, strict=True)]


def dot(first, second):
    return sum((a * b).sum() for a, b in zip(first, second, strict=True))


# Methods, in NumPy: theta and the batches to the gradient that is descended on.


def naive(theta, b):
    return J(theta, b["new"])[1]


def replay(theta, b):
    return J(theta, joined(b["past"], b["new"]))[1]


def er_ace(theta, b, competing):
    def masked(f, y):
        return losses(np.where(competing, f, -1e9), y)

    return plus(J(theta, b["new"], masked)[1], J(theta, b["past"])[1])


def agem(theta, b, projects):
    g, p = J(theta, b["new"])[1], J(theta, b["past"])[1]
    assert (dot(g, p) < 0) == projects
    return plus(g, p, -dot(g, p) / dot(p, p)) if projects else g


def der(theta, b, alpha, beta=0.0, counts=None):
    D = distance(theta, b["past"], b["past"].z, counts)[1]
    out = plus(J(theta, b["new"])[1], D, alpha)
    return plus(out, J(theta, b["again"])[1], beta) if beta else out


def mir(theta, b, replayed):
    ahead = plus(theta, J(theta, b["new"])[1], -LR)
    past = b["past"]
    rise = losses(f(ahead, past.x), past.y)[0] - losses(f(theta, past.x), past.y)[0]
    rise[past.w == 0] = -np.inf
    chosen = np.argsort(-rise)[:replayed]
    return J(theta, joined(past.at(chosen), b["new"]))[1]


def lor(theta, b, directions, eta, mu):
    g, p = J(theta, b["new"])[1], J(theta, b["past"])[1]
    share = keys.uniform(KEY[1], (directions,)).double().numpy()
    costs, slopes = [], []
    for w in share:
        direction = [w * a + (1 - w) * c for a, c in zip(g, p, strict=True)]
        L, G = J(plus(theta, direction, -eta), joined(b["past"], b["new"]))
        costs.append(L)
        slopes.append(G)
    weight = np.exp(np.array(costs) / mu)
    weight /= weight.sum()
    return [sum(w * g for w, g in zip(weight, leaf, strict=True)) for leaf in zip(*slopes)]  # noqa: B905


def cls_er(theta, b, strength):
    past = b["past"]
    plastic, stable = f(theta_of(30), past.x), f(theta_of(60), past.x)
    surer = losses(plastic, past.y)[0] < losses(stable, past.y)[0]
    assert 0 < surer.sum() < len(surer)
    z = np.where(surer[:, None], plastic, stable)
    return plus(replay(theta, b), distance(theta, past, z)[1], strength)


def outer_cost(theta, rates, b, each):
    """La-MAML's outer cost, and its gradients by theta and the rates with inner gradients fixed."""
    new, both = b["new"], joined(b["past"], b["new"])
    costs, by_theta, by_rates, way = [], [], [], [np.zeros_like(p) for p in theta]
    for half in (new.at(slice(0, 2)), new.at(slice(2, 4))):
        slope = J(theta, half)[1]
        theta = [p - a * g for p, a, g in zip(theta, rates, slope, strict=True)]
        way = plus(way, slope)
        cost, grads = J(theta, both)
        costs.append(cost)
        by_theta.append(grads)
        by_rates.append([-w * g for w, g in zip(way, grads, strict=True)])
    if not each:
        return costs[-1], by_theta[-1], by_rates[-1]
    means = ([(a + c) / 2 for a, c in zip(*pair, strict=True)] for pair in (by_theta, by_rates))
    return (np.mean(costs), *means)


def differences(cost, arrays, step=1e-6):
    """The gradient of a cost by finite differences."""
    out = [np.zeros_like(array) for array in arrays]
    for array, slope in zip(arrays, out, strict=True):
        for index in np.ndindex(array.shape):
            value = array[index]
            array[index] = value + step
            high = cost()
            array[index] = value - step
            slope[index] = (high - cost()) / (2 * step)
            array[index] = value
    return out


def la_maml(theta, b, order, each):
    """With rates that differ, as if they had been learned; 0 where they fall below it."""
    theta, rates = [p.copy() for p in theta], [p * 0.05 for p in theta]
    _, by_theta, by_rates = outer_cost(theta, rates, b, each)
    if order == 2:
        by_theta = differences(lambda: outer_cost(theta, rates, b, each)[0], theta)
        by_rates = differences(lambda: outer_cost(theta, rates, b, each)[0], rates)
    rates = plus(rates, by_rates, -2 * LR)
    assert any((a < 0).any() for a in rates)
    return [np.maximum(a, 0) / LR * g for a, g in zip(rates, by_theta, strict=True)]


def ftml(theta, b):
    """The gradient of the cost on validation rows after two inner steps, through them."""
    theta = [p.copy() for p in theta]

    def cost():
        ahead = theta
        for rows in (b["new"], b["again"]):
            ahead = plus(ahead, J(ahead, rows)[1], -0.2)
        return J(ahead, b["seen"])[0]

    return differences(cost, theta)


def ewc(theta, b, strength):
    F, anchored = [p**2 for p in theta_of(30)], theta_of(60)
    pull = [a * p - c for a, p, c in zip(F, theta, anchored, strict=True)]
    return plus(naive(theta, b), pull, strength)


def si(theta, b, strength):
    Omega, anchor = [p**2 for p in theta_of(30)], theta_of(60)
    pull = [2 * o * (p - a) for o, p, a in zip(Omega, theta, anchor, strict=True)]
    return plus(naive(theta, b), pull, strength)


def lwf(theta, b, strength, T, kind):
    new = b["new"]
    teacher = f(theta_of(30), new.x)
    if kind == "regression":
        return plus(J(theta, new)[1], distance(theta, new, teacher)[1], strength)

    def distilled(f, _):
        q, p = (softmax(logits[:, :2] / T) for logits in (teacher, f))  # class 2 was never seen
        d = np.hstack([(p - q) / T, np.zeros((len(f), 1))])
        return -(q * np.log(p)).sum(1), d

    return plus(J(theta, new)[1], J(theta, new, distilled)[1], strength)


BOTH = ("classification", "regression")
CLASSES = ("classification",)
SEEN = {"seen": torch.tensor([True, False, False])}
ALL = {"seen": torch.tensor([True, True, True])}
NONE = {"seen": torch.tensor([False, False, False])}
MOVING = {
    "plastic": tree(theta_of(30)),
    "stable": tree(theta_of(60)),
    "count": torch.tensor(8),
}
SQUARES = tree([p**2 for p in theta_of(30)])
ZERO = tree_map(torch.zeros_like, SQUARES)
RATES = {"rates": tree([p * 0.05 for p in theta_of(0)])}
EWC = {"F": SQUARES, "F_theta": tree(theta_of(60)), "gathered": ZERO, "rows": torch.tensor(0.0)}
SI = {"Omega": SQUARES, "omega": ZERO, "anchor": tree(theta_of(60))}
TEACHER = {"teacher": tree(theta_of(30))}
KNOWN = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 0], [1, 1, 0]])  # by the tasks of the rows

# name of the case -> method, its settings, what its state holds, kinds, the update in NumPy
CASES = {
    "replay": ("replay", {}, {}, BOTH, replay),
    "gdumb": ("gdumb", {}, {}, BOTH, lambda theta, b: J(theta, b["held"])[1]),
    "er_ace, old classes masked": ("er_ace", {}, ALL, CLASSES,
                                   partial(er_ace, competing=np.array([True, True, False]))),
    "er_ace, unseen classes compete": ("er_ace", {}, SEEN, CLASSES,
                                       partial(er_ace, competing=np.array([False, True, True]))),
    "er_ace, nothing masked": ("er_ace", {}, NONE, CLASSES, partial(der, alpha=0.0, beta=1.0)),
    "agem, conflict": ("agem", {}, {}, CLASSES, partial(agem, projects=True)),
    "agem, none": ("agem", {}, {}, CLASSES, partial(agem, projects=False)),
    "agem, first task": ("agem", {}, {}, BOTH, naive),
    "der": ("der", {"alpha": 0.3}, {}, BOTH, partial(der, alpha=0.3)),
    "der, seen": ("der", {"alpha": 0.3, "compared": "seen"}, {}, CLASSES,
                  partial(der, alpha=0.3, counts=KNOWN)),
    "der, seen, regression": ("der", {"alpha": 0.3, "compared": "seen"}, {}, ("regression",),
                              partial(der, alpha=0.3)),
    "derpp": ("derpp", {"alpha": 0.3, "beta": 0.7}, {}, BOTH, partial(der, alpha=0.3, beta=0.7)),
    "derpp, two means": ("derpp", {"alpha": 0.0, "beta": 1.0}, {}, BOTH,
                         partial(der, alpha=0.0, beta=1.0)),
    "mir": ("mir", {"replayed": 2, "candidates": 4}, {}, BOTH, partial(mir, replayed=2)),
    "mir, no choice": ("mir", {"candidates": 4}, {}, BOTH, replay),
    "lor": ("lor", {"directions": 3, "eta": 0.2, "mu": 0.5}, {}, BOTH,
            partial(lor, directions=3, eta=0.2, mu=0.5)),
    "lor, no look-ahead": ("lor", {"directions": 1, "eta": 0.0}, {}, BOTH, replay),
    "cls_er": ("cls_er", {"strength": 0.4}, MOVING, BOTH, partial(cls_er, strength=0.4)),
    "cls_er, no penalty": ("cls_er", {"strength": 0.0}, MOVING, BOTH, replay),
    **{f"la_maml, order {order}, {outer}":
           ("la_maml", {"order": order, "outer": outer, "inner": 2, "clip": None}, RATES, BOTH,
            partial(la_maml, order=order, each=outer == "each"))
       for order in (1, 2) for outer in ("last", "each")},
    "ftml": ("oml", {"reading": "original", "inner": 2, "inner_lr": 0.2}, {}, BOTH, ftml),
    "ewc": ("ewc", {"strength": 0.3}, EWC, BOTH, partial(ewc, strength=0.3)),
    "ewc, no penalty": ("ewc", {"strength": 0.0}, EWC, BOTH, naive),
    "si": ("si", {"strength": 0.3}, SI, BOTH, partial(si, strength=0.3)),
    "si, no penalty": ("si", {"strength": 0.0}, SI, BOTH, naive),
    "lwf": ("lwf", {"strength": 0.6, "temperature": 2.0},
            {**TEACHER, "seen": torch.tensor([True, True, False])}, CLASSES,
            partial(lwf, strength=0.6, T=2.0, kind="classification")),
    "lwf, regression": ("lwf", {"strength": 0.6}, {**TEACHER, **ALL}, ("regression",),
                        partial(lwf, strength=0.6, T=2.0, kind="regression")),
    "lwf, first task": ("lwf", {"strength": 0.6}, {**TEACHER, **NONE}, BOTH, naive),
    "lwf, no penalty": ("lwf", {"strength": 0.0}, {**TEACHER, **ALL}, BOTH, naive),
}  # fmt: skip


def rows_of(case, kind):
    """Batches by draw. A row of the memory is absent; in conflict, the rest says the contrary."""
    new, past = Rows(kind, 100), Rows(kind, 200, w=(1, 1, 0, 1))
    if case == "agem, first task":
        past = Rows(kind, 200, w=(0, 0, 0, 0))
    elif case.startswith("agem"):
        past = Rows(kind, 100, w=(1, 1, 0, 1), y=[1, 0, 1, 0] if "conflict" in case else None)
    if case.startswith("er_ace"):
        new = Rows(kind, 100, y=[0, 1, 1, 0] if "masked" in case else [1, 1, 1, 1])
        past = Rows(kind, 200, w=(1, 1, 0, 1), y=[0, 1, 2, 2])
    again = past if case == "er_ace, nothing masked" else Rows(kind, 300)
    held, seen = Rows(kind, 400, w=(1, 0, 1, 1)), Rows(kind, 500)
    return {"new": new, "past": past, "again": again, "held": held, "seen": seen}


def updated(case, kind, net=None):
    """The state after the case's update, from theta_of(0)."""
    name, settings, extra, _, _ = CASES[case]
    method = find(name)(optimiser="sgd", lr=LR, batch=ROWS, **settings)
    phase = method.phases(net or model(kind), task(kind))[0]
    state = method.start(tree(theta_of(0)), task(kind, 0))
    assert set(state.extra) == set(extra)
    state = state._replace(extra={**state.extra, **extra})
    rows = rows_of(case, kind)
    batches = {name: rows[name].batch() for name in phase.draws}
    if case == "ftml":
        batches["new"] = stack([rows["new"].batch(), rows["again"].batch()])
    return phase.update(state, batches, KEY)


@pytest.mark.parametrize(
    ("case", "kind"), [(case, kind) for case, parts in CASES.items() for kind in parts[3]]
)
def test_an_update_is_the_one_by_hand(case, kind):
    after = updated(case, kind)
    gradient = CASES[case][4](theta_of(0), rows_of(case, kind))
    close = 1e-8 if case.startswith(("la_maml, order 2", "ftml")) else 1e-9  # finite differences
    expected = plus(theta_of(0), gradient, -LR)
    for actual, desired in zip(leaves(after.theta), expected, strict=True):
        np.testing.assert_allclose(actual.numpy(), desired, rtol=0, atol=close)
    assert max(np.abs(g).max() for g in gradient) > 1e-2


@pytest.mark.parametrize(
    "case", ["replay", "agem, conflict", "der", "derpp", "mir", "lor", "cls_er", "lwf"]
)
def test_an_update_leaves_an_output_without_a_class_as_it_is(case):
    """The head of a learner has room for future classes; here the third output has none."""
    with_room = model("classification").with_room(2, WIDTH)
    after = updated(case, "classification", with_room)
    for actual, before in zip(leaves(after.theta)[2:], theta_of(0)[2:], strict=True):
        assert (actual[:2].numpy() != before[:2]).all()
        np.testing.assert_array_equal(actual[2].numpy(), before[2])


def background(case):
    """The first update of the meta-training of OML or ANML, as published: its state, and rows."""
    name, settings = {
        "oml": ("cml", {"trajectory": 2, "inner_lr": 0.5}),
        "anml": ("anml", {"trajectory": 2, "inner_lr": 0.5}),
    }[case]
    method = find(name)(reading="original", meta_lr=0.1, rates=[0.1], **settings)
    assert method.order == {"oml": 2, "anml": 1}[case]
    net, info = method.prepare(model("classification")), task("classification", 0)
    phase = method.phases(net, info)[0]
    assert phase.name == "background"
    theta = tree(theta_of(0))
    if case == "anml":
        gate = (torch.tensor(p) for p in theta_of(30)[:2])
        theta["gate"] = dict(zip(("0.weight", "0.bias"), gate, strict=True))
    rows = [Rows("classification", seed, w=(1,), y=[1]) for seed in range(100, 104)]
    rows, random = rows[: phase.draws["class"].block], Rows("classification", 200)
    batches = {"class": stack([row.batch() for row in rows]), "random": random.batch()}
    after = phase.update(method.start(theta, info), batches, KEY)
    means = [after.extra["meta"][part][name]["mean"] for part in theta for name in theta[part]]
    return [mean.numpy() / (1 - 0.9) for mean in means], rows, random  # of Adam, from 0


def with_new_row(theta):
    """theta with new weights of class 1 in its head, within 1 / sqrt(5)."""
    W, b, V, c = (p.copy() for p in theta)
    for lane, (leaf, shape) in enumerate(((V, (5,)), (c, (1,)))):
        u = keys.uniform(KEY[3], shape, lane).double().numpy()
        leaf[1:2] = (2 * u - 1) * 5**-0.5
    return [W, b, V, c]


def test_a_meta_update_of_oml_is_the_one_by_hand():
    """Two inner steps of V and c, a row each; the outer cost has two further rows of the class."""
    gradient, rows, random = background("oml")
    theta = [p.copy() for p in theta_of(0)]

    def cost():
        W, b, V, c = with_new_row(theta)
        for row in rows[:2]:
            _, _, dV, dc = J([W, b, V, c], row)[1]
            V, c = V - 0.5 * dV, c - 0.5 * dc
        return J([W, b, V, c], joined(random, joined(*rows[2:])))[0]

    for actual, desired in zip(gradient, differences(cost, theta), strict=True):
        np.testing.assert_allclose(actual, desired, rtol=0, atol=1e-8)
    assert (gradient[2][1] == 0).all()  # the row of the class that began anew
    assert min(np.abs(g).max() for g in gradient) > 1e-2


def test_a_meta_update_of_anml_is_the_one_by_hand():
    """Two inner steps of all but the gate, a row each; the gradient there, on all and the gate."""
    gradient, rows, random = background("anml")
    U, e = theta_of(30)[:2]

    def slopes(theta, rows):
        W, b, V, c = theta
        h, t = np.tanh(rows.x @ W.T + b), np.tanh(rows.x @ U.T + e)
        open_ = 1 / (1 + np.exp(-t))
        d = losses((h * open_) @ V.T + c, rows.y)[1] * (rows.w / rows.w.sum())[:, None]
        through = d @ V
        dh = through * open_ * (1 - h**2)
        dt = through * h * open_ * (1 - open_) * (1 - t**2)
        moving = [dh.T @ rows.x, dh.sum(0), d.T @ (h * open_), d.sum(0)]
        return moving, [dt.T @ rows.x, dt.sum(0)]

    theta = with_new_row(theta_of(0))
    for row in rows:
        theta = plus(theta, slopes(theta, row)[0], -0.5)
    moving, gate = slopes(theta, joined(random, joined(*rows)))
    for actual, desired in zip(gradient, moving + gate, strict=True):
        np.testing.assert_allclose(actual, desired, rtol=0, atol=1e-9)
    assert min(np.abs(g).max() for g in gradient) > 1e-3


def test_what_is_carried_along_is_what_it_says():
    after = updated("er_ace, unseen classes compete", "classification")
    assert after.extra["seen"].tolist() == [True, True, False]

    after = updated("cls_er", "classification")
    moved = [p.numpy() for p in leaves(after.theta)]
    u = keys.uniform(KEY[1], (2,)).tolist()
    for name, seed, decay, chance in (("plastic", 30, 0.99, 1.0), ("stable", 60, 0.999, 0.9)):
        stays = min(decay, 1 - 1 / 10) if u[("plastic", "stable").index(name)] < chance else 1.0
        average = [stays * a + (1 - stays) * b for a, b in zip(theta_of(seed), moved, strict=True)]
        for actual, desired in zip(leaves(after.extra[name]), average, strict=True):
            np.testing.assert_allclose(actual.numpy(), desired, atol=1e-12)
    assert int(after.extra["count"]) == 9
    assert find("cls_er")().evaluated(after).theta is after.extra["stable"]

    ended = find("lwf")().end_of_task(after, None, task("classification"))
    assert (ended.extra["teacher"], ended.extra["seen"].tolist()) == (after.theta, [1, 1, 0])

    rows = rows_of("si", "regression")
    after = updated("si", "regression")
    steps = [n.numpy() - o for n, o in zip(leaves(after.theta), theta_of(0), strict=True)]
    omega = [-g * d for g, d in zip(J(theta_of(0), rows["new"])[1], steps, strict=True)]
    ended = find("si")(damping=0.2).end_of_task(after, None, None)
    for actual, o, p, old, anchor in zip(
        leaves(ended.extra["Omega"]), omega, leaves(after.theta), theta_of(30), theta_of(60),
        strict=True,
    ):  # fmt: skip
        new = old**2 + np.maximum(o, 0) / ((p.numpy() - anchor) ** 2 + 0.2)
        np.testing.assert_allclose(actual.numpy(), new, atol=1e-9)
    assert all(not leaf.any() for leaf in leaves(ended.extra["omega"]))


@pytest.mark.parametrize("kind", BOTH)
def test_the_fisher_information_of_ewc_is_by_row_and_its_anchors_are_each_task_s(kind):
    rows = Rows(kind, 100, w=(1, 1, 0, 1))
    settings = {"fisher": "empirical", "batch": ROWS, "fisher_rows": 6}
    method = find("ewc")(**settings)
    _, phase = method.phases(model(kind), task(kind))
    assert (phase.updates, phase.draws["rows"].replace) == (2, False)
    state = method.start(tree(theta_of(0)), task(kind, 0))._replace(extra=EWC)
    state = phase.update(phase.update(state, {"rows": rows.batch()}, KEY),
                         {"rows": rows.batch()}, KEY)  # fmt: skip
    F = [np.zeros_like(p) for p in theta_of(0)]
    for i in (0, 1, 3):
        row = rows.at(slice(i, i + 1))
        F = plus(F, [g**2 for g in J(theta_of(0), row)[1]], 1 / 3)
    for anchors, decay in (("each", 1.0), ("last", 0.5)):
        ended = find("ewc")(**settings, anchors=anchors, decay=decay).end_of_task(state, None, None)
        total = plus(F, [p**2 for p in theta_of(30)], decay)
        pull = [a * p for a, p in zip(total, theta_of(0), strict=True)]
        if anchors == "each":
            pull = plus(theta_of(60), [a * p for a, p in zip(F, theta_of(0), strict=True)])
        for name, expected in (("F", total), ("F_theta", pull)):
            for actual, desired in zip(leaves(ended.extra[name]), expected, strict=True):
                np.testing.assert_allclose(actual.numpy(), desired, atol=1e-9)
        assert float(ended.extra["rows"]) == 0


def test_the_fisher_information_does_not_depend_on_the_replicas_beside_it():
    """One replica has 9 rows in the first task and 18 in the second, the other the reverse."""
    both = own_rows_stream([[15, 30], [30, 15]])
    one = replace(both, row=both.row[:1], task=both.task[:1])
    together, alone = (
        tiny_run(find("ewc")(**SMALL), seeds, stream=stream).theta
        for stream, seeds in ((both, (0, 1)), (one, (0,)))
    )
    assert same_bits(at(together, 0), at(alone, 0))


def test_sampled_targets_have_the_model_s_own_distribution():
    n = 40_000
    logits = torch.tensor([[0.0, 1.0, -1.0]], dtype=torch.float64)
    y = sample_targets(model("classification"), logits.expand(n, 3), KEY[0])
    share = torch.bincount(y, minlength=3) / n
    torch.testing.assert_close(share.double(), torch.softmax(logits[0], 0), atol=0.01, rtol=0)
    with_room = model("classification").with_room(2, WIDTH)  # the third output has no class
    y = sample_targets(with_room, logits.expand(n, 3), KEY[0])
    share = torch.bincount(y) / n
    torch.testing.assert_close(share.double(), torch.softmax(logits[0, :2], 0), atol=0.01, rtol=0)
    values = sample_targets(model("regression"), logits.expand(n, 3), KEY[0])
    torch.testing.assert_close(values.mean(0), logits[0], atol=0.03, rtol=0)
    torch.testing.assert_close(values.var(0), torch.full((3,), 1.5).double(), atol=0.01, rtol=0)


def test_la_maml_shortens_long_gradients():
    method = find("la_maml")(clip=2.0)
    for norm, expected in ((1.0, 1.0), (8.0, 2.0)):
        grads = method._clipped({"p": {"w": torch.full((16,), norm / 4)}})
        assert float(grads["p"]["w"].norm()) == pytest.approx(expected)


def test_gdumb_s_memory_is_balanced_by_class_and_keeps_the_rows_that_it_has():
    """Six slots: of a class alone six rows, of two three each, and of three two each."""
    policy = find("gdumb")().policy
    memory = empty(6, notes={"kind": torch.zeros(1, dtype=torch.int64)})
    counts = []
    for number, rows in enumerate((8, 8, 3, 8)):
        position = torch.arange(8) + 8 * number
        kind = torch.full((8,), min(number, 2))
        offer = Offer(position, torch.arange(8) < rows, {"kind": kind})
        before, memory = memory, policy(memory, offer, KEY[0] + number)
        counts.append(torch.bincount(memory.notes["kind"], minlength=3).tolist())
        assert (memory.position // 8).clamp(max=2).tolist() == memory.notes["kind"].tolist()
        assert (int(memory.filled), len(set(memory.position.tolist()))) == (6, 6)
    assert counts == [[6, 0, 0], [3, 3, 0], [2, 2, 2], [2, 2, 2]]
    assert sorted(before.position.tolist()) == sorted(memory.position.tolist())


def test_gdumb_s_memory_takes_new_classes_when_it_has_fewer_slots():
    policy = find("gdumb")().policy
    memory = empty(2, notes={"kind": torch.zeros(1, dtype=torch.int64)})
    held = []
    for number in range(4):
        kind = torch.full((3,), number)
        offer = Offer(torch.arange(3) + 3 * number, torch.ones(3, dtype=torch.bool), {"kind": kind})
        memory = policy(memory, offer, KEY[0] + number)
        held.append(sorted(memory.notes["kind"].tolist()))
    assert held == [[0, 0], [0, 1], [0, 2], [2, 3]]


SMALL = {"optimiser": "sgd", "lr": 0.05, "batch": 4, "updates": 6, "memory": 20}


def test_what_methods_cost_and_keep_is_counted():
    """Three tasks of 36 rows, 6 updates each, 4 rows a batch; notes cost a forward pass a row."""
    forward = {
        ("der", "during"): 3 * 6 * 4,
        ("der", "after"): 3 * 36,
        ("mir", "after"): 3 * 6 * 2 * 20,  # candidates, twice
        ("replay", "after"): 0,
    }
    for (name, enters), rows in forward.items():
        work = tiny_run(find(name)(**SMALL, enters=enters), (0,)).work
        assert work.rows_forward == rows
        assert work.notes_bytes == (20 * 6 * 8 if name == "der" else 0)  # six logits a row
        assert work.memory_bytes == 20 * 3 * 8
    theta = sum(leaf.nbytes for leaf in leaves(tiny_run(find("lwf")(**SMALL), (0,)).theta))
    for name, copies in {"lwf": 1, "cls_er": 2, "si": 3, "ewc": 3, "la_maml": 1}.items():
        copies_bytes = tiny_run(find(name)(**SMALL), (0,)).work.copies_bytes
        assert theta * copies <= copies_bytes <= theta * copies + 16


def test_er_ace_says_where_its_first_term_is_gone(log_lines):
    method = find("er_ace")()
    last = task("classification", 2)
    assert method.remark([task("classification")]) is None  # class 2 is still to come
    everything = torch.ones(3, dtype=torch.bool)
    remark = method.remark([type(last)(**{**last.__dict__, "seen": everything})])
    assert remark.startswith("from task 2 on no unseen class is left to compete")

    stream = Stream.from_arrays(random(30, 2), np.arange(30) % 3, classes_per_task=1)
    tiny_run(find("er_ace")(**{**SMALL, "updates": 2}), (0,), stream=stream)
    assert log_lines == [remark]


def test_mir_needs_as_many_candidates_as_it_replays():
    with pytest.raises(SpecError, match="candidates must be at least the rows replayed, 32, got 5"):
        find("mir")(candidates=5)
