"""Check of the contract of a method, on three tasks of two classes each, in the plane."""

from typing import Any

import torch
from torch import Tensor, nn

from dpmcl.core.model import Model
from dpmcl.core.tree import at, leaves, shapes, tree_map
from dpmcl.data.splits import split
from dpmcl.data.stream import Stream
from dpmcl.engine import Batched, Engine, Looped
from dpmcl.exceptions import DpmclError, SpecError
from dpmcl.methods._method import Method
from dpmcl.testing.promise import require
from dpmcl.training.absent_rows import uses_absent_rows
from dpmcl.training.checks import check
from dpmcl.training.evaluation import evaluate, evaluated_states
from dpmcl.training.loop import after_evaluation_phases, first_state, learn_task
from dpmcl.training.setup import Setup
from dpmcl.training.state import RunState

_SEEDS = (0, 1)
_NEAR = 1e-6


def check_method(method: Method) -> None:
    """Check that a method keeps the promises of every method; takes about 1 s for 20 updates.

    On three tasks of two classes: an update is a pure function that keeps the shapes of its state;
    rows of weight 0 change nothing; the same seed gives the same bits; replicas trained one after
    another and all at once give the same up to rounding; evaluation changes nothing; gradients are
    counted; and numbers stay finite.

    Args:
        method: The method, with settings that learn something in a few updates.

    Raises:
        SpecError: `method` is not a method.
        AssertionError: The method breaks a promise; the message says which, and what to do.

    >>> from dpmcl.methods.er import ER
    >>> check_method(ER(updates=5, batch=4))
    """
    if not isinstance(method, Method):
        raise SpecError(
            f"A method is an instance of a subclass of dpmcl.Method, got {method!r:.80}."
        )
    setup = _setup(method, Looped())
    check(setup)
    run = first_state(setup)
    for _ in range(setup.tasks):
        _check_updates(setup, run)
        run = learn_task(setup, run)
    require(
        "method",
        all(bool(leaf.isfinite().all()) for leaf in leaves(run.replicas.theta)),
        "parameters stay finite; take smaller steps, or find what divides by 0",
    )
    require(
        "method",
        bool(run.work.gradient_evaluations or not run.work.rows_backpropagated),
        "its gradients are counted; take them through dpmcl.gradient",
    )
    repeat = first_state(setup)
    for task in range(setup.tasks):
        repeat = learn_task(setup, repeat)
        _evaluate(setup, repeat, task)
    require(
        "method",
        _equal(tuple(run.replicas), tuple(repeat.replicas)),
        "the same seed gives the same bits, and evaluation changes nothing; draw by the keys of an "
        "update (dpmcl.keys), and keep nothing outside of the State",
    )
    _check_batched(method, run)


def _setup(method: Method, engine: Engine) -> Setup:
    """Return the setup of a method on a small stream."""
    generator = torch.Generator().manual_seed(0)
    angle = torch.arange(6) * (torch.pi / 3)
    y = torch.arange(6).repeat_interleave(20)
    noise = 0.3 * torch.randn(len(y), 2, generator=generator, dtype=torch.float64)
    x = 3 * torch.stack([angle.cos(), angle.sin()], 1)[y] + noise
    stream = Stream.from_arrays(x, y, classes_per_task=2)

    def network() -> tuple[nn.Module, nn.Module]:
        h = nn.Sequential(nn.Linear(2, 8), nn.ReLU())
        return h, nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 6))

    example = stream.example(torch.float64)
    model = Model.build(network, "classification", example, 6, dtype=torch.float64)
    return Setup(
        method=method,
        model=method.modelled(model, stream.outputs),
        stream=stream,
        splits=split(stream, _SEEDS, (0.6, 0.2, 0.2)),
        seeds=_SEEDS,
        engine=engine,
    )


def _check_updates(setup: Setup, run: RunState) -> None:
    """Check the first update of each phase of the next task."""
    task = run.position.task
    for number, phase in enumerate(setup.phases[task]):
        position = run.position._replace(phase=number)
        feed = setup.feed(run.memories, phase, position, 1)
        arguments = at(run.replicas, 0), feed.batches(0, 0), feed.key[0, 0]
        before = tree_map(Tensor.clone, arguments)
        first, second = phase.update(*arguments), phase.update(*arguments)
        where = f"(phase '{phase.name}' of task {task})"
        require(
            "method",
            _equal(arguments, before),
            f"an update changes nothing that it is given {where}; write x = x + y for x += y",
        )
        require(
            "method",
            _equal(first, second),
            f"an update gives the same result again {where}; draw by its keys alone",
        )
        require(
            "method",
            not uses_absent_rows(setup, run, phase.update, feed),
            f"rows of weight 0, as those of an empty memory, change nothing {where}; weight the "
            "cost of each row by batch.w, as model.cost and weighted_mean do",
        )
        require(
            "method",
            shapes(tuple(first)) == shapes(tuple(arguments[0])),
            f"an update keeps the shapes and types of its state {where}, as `start` made them",
        )


def _evaluate(setup: Setup, run: RunState, task: int) -> Tensor:
    state = evaluated_states(setup, after_evaluation_phases(setup, run, task))
    return evaluate(setup, state, setup.splits.test, range(task + 1))


def _check_batched(method: Method, looped: RunState) -> None:
    """Check that training all replicas at once ends as training one after another did."""
    setup = _setup(method, Batched())
    run = first_state(setup)
    try:
        for _ in range(setup.tasks):
            run = learn_task(setup, run)
    except (RuntimeError, DpmclError) as error:
        raise AssertionError(
            f"A method promises that its update can be batched (torch.func.vmap): {error}"
        ) from error
    pairs = zip(leaves(looped.replicas.theta), leaves(run.replicas.theta), strict=True)
    require(
        "method",
        all(torch.allclose(a, b, rtol=_NEAR, atol=_NEAR) for a, b in pairs),
        "one replica after another gives what all at once give; use no value of a tensor in Python",
    )


def _equal(first: Any, second: Any) -> bool:
    pairs = zip(leaves(first), leaves(second), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
