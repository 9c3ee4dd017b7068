"""Gradients through inner updates are right, and a run says where float32 makes them noisy."""

import pytest
import torch

import dpmcl
from conftest import TWO_LOOPS, tiny_model, tiny_stream, tiny_task
from dpmcl import plugins
from dpmcl.core.tree import at, leaves, rebuilt, tree_map
from dpmcl.methods.dpmcl import DPMCL
from dpmcl.methods.oml import OML
from dpmcl.optimisers import _optimiser as optim
from dpmcl.training.second_order import noise_warning

STARTED = {"name": "adagrad", "initial_accumulator": 0.1}


def test_it_is_said_once_with_the_way_out(log_lines):
    settings = {"training.updates": 2, "stream.classes_per_task": 5}
    own = {"dpmcl": {"third_term": "exact", "kappa": 2}, "oml": {"reading": "nested", "order": 2}}
    dpmcl.run("digits", methods=own, replicas=2, settings=settings)
    first, second = (line for line in log_lines if "noisy" in line)
    assert "third_term = 'exact' differentiates through a fresh Adagrad, which is noisy in" in first
    assert second.endswith("dtype = 'float64', optimiser = 'sgd' for this method, or order = 1.")


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        (DPMCL(third_term="exact", optimiser="sgd"), torch.float32),
        (DPMCL(third_term="exact"), torch.float64),
        (DPMCL(third_term="exact", buffer_state="copied"), torch.float32),
        (DPMCL(third_term="exact", zeta=0), torch.float32),
        (DPMCL(third_term="first"), torch.float32),
        (OML(reading="nested", order=2, optimiser=STARTED), torch.float32),
        (OML(order=2), torch.float32),
    ],
)
def test_it_is_not_said_of_what_is_exact(method, dtype):
    assert noise_warning(method, dtype) is None


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


def outer_gradient(monkeypatch, method, model, start, batches, key):
    """The gradient that the outer update hands to theta's optimiser."""
    caught = []
    monkeypatch.setattr(
        type(method), "descend", lambda self, state, grads, cost: caught.append(grads) or state
    )
    (phase,) = method.phases(model, tiny_task())
    phase.update(method.start(start, tiny_task()), batches, key)
    return caught[0]


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
            moving, state = rule.step(moving, rebuilt(free, found), state)
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
