"""Differentiating through inner updates: how much memory, whether it fits, and is it right."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conftest import tiny_model, tiny_run, tiny_stream, tiny_task
from dpmcl import plugins
from dpmcl.core.model import Model
from dpmcl.core.tree import at, leaves, tree_map
from dpmcl.engine import Batched, Looped, check_fit, fit
from dpmcl.exceptions import ModelError
from dpmcl.methods.dpmcl import DPMCL
from dpmcl.methods.oml import OML
from dpmcl.networks.mlp import MLP
from dpmcl.optimisers import _optimiser as optim

GIB = 2**30
TWO_LOOPS = ("oml", "cml", "anml")


def nested(name="oml", **own):
    own = {"reading": "nested", "order": 2, "inner": 2, "batch": 4, **own}
    return plugins.find("method", name)(lr=0.05, updates=2, memory=20, **own)


def some_batches(phase, stream, dtype=torch.float64):
    """Batches of a phase for one replica, drawn anyhow, and keys."""
    generator = torch.Generator().manual_seed(1)
    batches = {}
    for name, draw in phase.draws.items():
        shape = (draw.batch,) if draw.block is None else (draw.block, draw.batch)
        row = torch.randint(len(stream.y), shape, generator=generator)
        batches[name] = stream.batch(row, row >= 0, stream.task[0][row], dtype)
    return batches, torch.arange(phase.keys * 2).reshape(phase.keys, 2)


# How much.


class Live(TorchDispatchMode):
    """The peak of bytes in tensors that are alive, of those made in the block."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self.alive = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for value in torch.utils._pytree.tree_leaves(out):
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                key, size = storage._cdata, storage.nbytes()
                if key not in self.alive:
                    self.alive[key] = size
                    self.now += size
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self.gone, key)
        return out

    def gone(self, key):
        self.now -= self.alive.pop(key)


def wide_model(stream):
    return Model.build(
        lambda: MLP(hidden=64).build((2,), stream.outputs),
        stream.kind,
        stream.example(torch.float64),
        stream.outputs,
        dtype=torch.float64,
    )


@pytest.mark.parametrize(("optimiser", "batch"), [("sgd", 4), ("adagrad", 128), ("adam", 4)])
@pytest.mark.parametrize("name", [*TWO_LOOPS, "dpmcl"])
def test_the_estimate_is_near_the_measured_peak(name, optimiser, batch):
    stream = tiny_stream()
    if name == "dpmcl":
        method = DPMCL(optimiser=optimiser, third_term="exact", zeta=10, batch=batch)
    else:
        method = nested(name, optimiser=optimiser, inner=10, batch=batch)
    model = method.prepare(wide_model(stream))
    (phase,) = method.phases(model, tiny_task())
    batches, key = some_batches(phase, stream)
    state = method.start(model.init(0), tiny_task())
    with Live() as live:
        phase.update(state, batches, key)
    estimate = fit.needed_bytes(method, model, stream, 1)
    assert 0.7 < estimate / live.peak < 2.5


def test_the_estimate_grows_with_inner_updates_replicas_and_batch():
    stream = tiny_stream()
    model = tiny_model(stream)

    def needed(replicas=1, **own):
        method = nested(**own)
        return fit.needed_bytes(method, model, stream, replicas)

    assert needed(replicas=7) == 7 * needed()
    for setting in ("inner", "batch"):
        one, two, three = (needed(**{setting: n}) for n in (10, 20, 30))
        assert three - two == two - one > 0


# Whether it fits.


def free(monkeypatch, size):
    monkeypatch.setattr(fit, "free_bytes", lambda model: size)


def test_what_does_not_fit_is_refused_before_training_and_says_what_would(monkeypatch):
    stream = tiny_stream(2)
    method, model = nested(inner=3), tiny_model(stream)
    free(monkeypatch, fit.needed_bytes(method, model, stream, 1))
    tiny_run(method, seeds=(0, 1), engine=Looped(), tasks=2)  # one replica at a time
    with pytest.raises(ModelError) as caught:
        tiny_run(method, seeds=tuple(range(50)), engine=Batched(), tasks=2)
    text = str(caught.value)
    assert text.startswith("order = 2 through 3 inner updates needs about ")
    assert "for 50 replicas, and" in text
    assert text.endswith(
        "use fewer inner updates (inner), a smaller batch, fewer replicas, engine = 'looped', "
        "or order = 1."
    )
    free(monkeypatch, 10)
    with pytest.raises(ModelError, match="for one replica, and") as caught:
        tiny_run(method, seeds=(0, 1), engine=Looped(), tasks=2)
    assert not any(words in str(caught.value) for words in ("looped", "fewer replicas"))
    free(monkeypatch, 12 * GIB)
    with pytest.raises(ModelError) as caught:
        check_fit(DPMCL(third_term="exact", zeta=10_000_000), model, stream, 50)
    text = str(caught.value)
    assert text.startswith("third_term = 'exact' through 10000000 inner updates needs about ")
    assert "12 GiB are free; use fewer inner updates (zeta)," in text
    assert text.endswith("or third_term = 'first'.")


def test_what_keeps_no_graph_is_never_refused(monkeypatch):
    free(monkeypatch, 0)
    stream = tiny_stream()
    for method in (
        *(plugins.find("method", name)() for name in plugins.names("method")),
        nested(order=1, inner=10**6),
        OML(reading="text", order=2, inner=10**6),
        DPMCL(third_term="first"),
        DPMCL(third_term="exact", zeta=0),
    ):
        check_fit(method, tiny_model(stream), stream, 10**6)


# Is it right.


def outer_gradient(monkeypatch, method, model, start, batches, key):
    """The gradient that the outer update hands to theta's optimiser."""
    caught = []
    monkeypatch.setattr(
        type(method), "descend", lambda self, state, grads, cost: caught.append(grads) or state
    )
    (phase,) = method.phases(model, tiny_task())
    phase.update(method.start(start, tiny_task()), batches, key)
    return caught[0]


def like(tree, values):
    """Values, one a leaf, in the form of a tree."""
    rest = iter(values)
    return tree_map(lambda _: next(rest), tree)


@pytest.mark.parametrize("inner", [1, 3])
@pytest.mark.parametrize("optimiser", ["sgd", "adagrad"])
@pytest.mark.parametrize("name", TWO_LOOPS)
def test_order_2_agrees_with_finite_differences(monkeypatch, name, optimiser, inner):
    stream = tiny_stream()
    method = nested(name, optimiser=optimiser, inner=inner)
    model = method.prepare(tiny_model(stream, dropout=0.2))
    rule = optim.build(optimiser, 0.05)
    batches, key = some_batches(method.phases(model, tiny_task())[0], stream)
    start = model.init(3)

    def cost(theta):
        """The cost at theta~, with inner gradients by autograd."""
        moving = {part: theta[part] for part in method.inner_parts}
        state = rule.init(moving)
        for step in range(inner):
            free = tree_map(lambda leaf: leaf.detach().requires_grad_(), moving)
            j = model.cost({**theta, **free}, at(batches["new"], step), key[step])
            found = torch.autograd.grad(j, leaves(free))
            moving, state = rule.step(moving, like(free, found), state)
        return model.cost({**theta, **moving}, batches["seen"], key[inner])

    grads = outer_gradient(monkeypatch, method, model, start, batches, key)
    assert set(grads) == set(method.outer_parts)
    generator = torch.Generator().manual_seed(0)
    for part in method.outer_parts:
        leaf = "2.weight"
        flat = start[part][leaf].flatten()
        for i in torch.randperm(len(flat), generator=generator)[:3].tolist():
            values = []
            for step in (1e-6, -1e-6):
                moved = flat.clone()
                moved[i] += step
                shifted = {**start[part], leaf: moved.view_as(start[part][leaf])}
                values.append(cost({**start, part: shifted}).item())
            numeric = (values[0] - values[1]) / 2e-6
            found = grads[part][leaf].flatten()[i].item()
            assert found == pytest.approx(numeric, abs=2e-6, rel=1e-5)
