"""Fixed buffers give what plain mapping gives, and nothing in an update hinders a capture."""

import contextlib
import itertools
from dataclasses import dataclass, replace

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from conftest import TWO_LOOPS, complaint, same_bits, tiny_model, tiny_run, tiny_stream, tiny_task
from dpmcl import plugins
from dpmcl.core.model import initial_weights
from dpmcl.core.tree import tree_map
from dpmcl.data.sampling import Drawn
from dpmcl.engine import Batched, Feed, Looped, captured
from dpmcl.engine.captured import Cell
from dpmcl.exceptions import ModelError
from dpmcl.methods.naive import Naive

CASES = [
    *((name, {}) for name in plugins.names("method")),
    *((name, {"reading": "nested", "inner": 2, "order": 2}) for name in TWO_LOOPS),
    ("oml", {"reading": "nested", "inner": 2}),
    ("dpmcl", {"third_term": "exact", "zeta": 2, "step": "joint"}),
    ("dpmcl", {"third_term": "first", "buffer_state": "copied"}),
    ("la_maml", {"order": 2, "outer": "each"}),
    ("ewc", {"fisher": "empirical"}),
]
every_case_and_optimiser = pytest.mark.parametrize(
    ("name", "options", "optimiser"),
    [(*case, "adam") for case in CASES] + [("er", {}, other) for other in ("adagrad", "sgd")],
    ids=str,
)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def settings(name, optimiser="adagrad", **options):
    return plugins.find("method", name)(
        optimiser=optimiser, lr=0.01, batch=4, updates=9, memory=20, **options
    )


def a_phase(method=None, steps=5, replicas=2):
    """The update of a method's first phase, a state, and a feed of hand-made draws."""
    stream = tiny_stream(2)
    model = tiny_model(stream, dropout=0.2)
    method = method or Naive(batch=3)
    phase = method.phases(model, tiny_task())[0]
    theta = initial_weights(model, range(replicas))
    state = Looped().map(lambda one: method.start(one, tiny_task()), theta)
    row = torch.arange(replicas * steps * 3).reshape(replicas, steps, 3) % len(stream.y)
    key = torch.arange(replicas * steps * phase.keys * 2).reshape(replicas, steps, phase.keys, 2)
    drawn = Drawn({"new": row}, {"new": row >= 0}, {"new": row * 0}, key)
    return phase.update, state, Feed(drawn, stream, torch.float64)


@pytest.mark.parametrize(
    ("name", "options"),
    [("er", {}), ("dpmcl", {"third_term": "exact", "zeta": 2}), ("cls_er", {}), ("ewc", {})],
)
def test_fixed_buffers_give_the_same_bits(monkeypatch, name, options):
    monkeypatch.setattr("dpmcl.training.loop.UPDATES_AT_ONCE", 4)  # segments of 4, 4 and 1
    plain, static = (
        tiny_run(settings(name, "adam", **options), engine=e, tasks=2, dropout=0.2)
        for e in (Batched(), Batched(static=True))
    )
    assert same_bits(plain.theta, static.theta)


def test_a_cell_leaves_what_it_is_given_and_shares_nothing():
    update, state, feed = a_phase()
    before = tree_map(torch.Tensor.clone, (tuple(state), tuple(feed.drawn)))
    cell = Cell(update, state, feed)
    after = cell.run(state, feed.drawn)
    assert same_bits(before, (tuple(state), tuple(feed.drawn)))
    assert not same_bits(after, state)
    copies = tree_map(torch.Tensor.clone, after)
    cell.run(after, feed.drawn)
    assert same_bits(after, copies)


def test_a_longer_segment_or_another_update_gets_a_new_cell_and_a_shorter_one_does_not():
    update, state, feed = a_phase()
    another, *_ = a_phase(Naive(batch=3, lr=0.5))
    engine, cells = Batched(static=True), []
    short = replace(feed, drawn=feed.drawn.first(2))
    long = replace(feed, drawn=a_phase(steps=6)[2].drawn)
    for candidate, its_feed in [(update, feed), (update, short), (update, long), (another, long)]:
        expected = Batched().advance(candidate, state, its_feed)
        assert same_bits(engine.advance(candidate, state, its_feed), expected)
        cells.append(engine._cells[-1])
    assert [a is b for a, b in itertools.pairwise(cells)] == [True, False, False]


@dataclass(frozen=True, kw_only=True)
class Remembers(Naive):
    """Keeps what theta was two updates ago: its new state is, in part, its old one."""

    def start(self, theta, task):
        return super().start(theta, task)._replace(extra={"last": theta, "before": theta})

    def phases(self, model, task):
        (plain,) = super().phases(model, task)

        def update(state, batches, key):
            after = plain.update(state, batches, key)
            return after._replace(extra={"last": state.theta, "before": state.extra["last"]})

        return [replace(plain, update=update)]


def test_an_update_may_hand_on_parts_of_its_old_state():
    update, state, feed = a_phase(Remembers(batch=3))
    plain, static = (
        engine.advance(update, state, feed) for engine in (Batched(), Batched(static=True))
    )
    assert same_bits(plain, static)
    assert not same_bits(static.extra["last"], static.extra["before"])


def test_a_state_that_grows_is_refused():
    update, state, feed = a_phase()

    def grows(state, batches, key):
        return update(state, batches, key)._replace(extra={"count": key})

    def widens(state, batches, key):
        return state._replace(theta=tree_map(lambda leaf: torch.stack([leaf, leaf]), state.theta))

    for wrong in (grows, widens):
        with pytest.raises(ModelError, match="may not change the shapes or types of its state"):
            Batched(static=True).advance(wrong, state, feed)


# What a capture forbids, seen without a GPU: on the "meta" device tensors have no values, so an
# update that looks at one fails, and a copy from the host shows up as an operation on two devices.

SCALAR_OPERATIONS = {"add", "sub", "mul", "div", "pow"}
"""They take a number of the host's as a kernel's argument; nothing is copied."""


class NoHost(TorchDispatchMode):
    """Fails at an operation that brings a tensor from the host to the device, or back."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        arguments = list(torch.utils._pytree.tree_leaves((args, kwargs or {}, out)))
        tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
        host = [t for t in tensors if t.device.type != "meta"]
        name = function.overloadpacket.__name__
        numbers = name in SCALAR_OPERATIONS and all(t.dim() == 0 for t in host)
        if 0 < len(host) < len(tensors) and not numbers:
            raise AssertionError(f"{function} is given tensors of the host and of the device")
        return out


class NoLists(TorchFunctionMode):
    """Fails where a tensor is made of Python's numbers, which copies them to the device."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in (torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy):
            raise AssertionError(f"{function} copies from the host")
        return function(*args, **(kwargs or {}))


class OnMeta(Looped):
    """Steps a cell once on the meta device, and leaves the state as it is."""

    def advance(self, update, state, feed):
        meta = torch.device("meta")
        state_there, drawn = tree_map(lambda leaf: leaf.to(meta), (state, feed.drawn))
        cell = Cell(update, state_there, Feed(drawn, feed.stream.to(meta), feed.dtype))
        with NoHost(), NoLists():
            cell.step()
        return state


@every_case_and_optimiser
def test_an_update_looks_at_no_value_and_copies_nothing_from_the_host(name, options, optimiser):
    method = settings(name, optimiser, **options)
    tiny_run(replace(method, updates=1), engine=OnMeta(), tasks=2, dropout=0.2)


# The way to a GPU, with PyTorch's CUDA names replaced by ones that do nothing.


class Stream:
    def wait_stream(self, other):
        pass


@pytest.fixture
def pretend_gpu(monkeypatch):
    """Cells go the way to a GPU; returns the calls of replay."""
    replays, cells = [], []

    class Graph:
        def replay(self):
            replays.append(self)
            cells[-1].step()

    real = Cell._capture

    def capture(cell):
        cells.append(cell)
        return real(cell)

    @contextlib.contextmanager
    def graph(_, pool=None):
        cells[-1]._counter.zero_()  # here the step is run, on a GPU it is only recorded
        yield

    monkeypatch.setattr(captured, "is_on_gpu", lambda drawn: True)
    monkeypatch.setattr(Cell, "_capture", capture)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    return replays


def test_warming_up_leaves_no_trace(pretend_gpu):
    for steps in (1, 5):
        update, state, feed = a_phase(steps=steps)
        cell = Cell(update, state, feed)
        pretend_gpu.clear()
        after = cell.run(state, feed.drawn)
        assert len(pretend_gpu) == steps
        again = cell.run(after, feed.drawn)
        assert len(pretend_gpu) == 2 * steps
        expected = Batched().advance(update, state, feed)
        assert same_bits(after, expected)
        assert same_bits(again, Batched().advance(update, expected, feed))


def test_an_update_that_cannot_be_captured_is_named(pretend_gpu, monkeypatch):
    update, state, feed = a_phase()
    capturing = []

    @contextlib.contextmanager
    def graph(_, pool=None):
        capturing.append(True)
        try:
            yield
        except RuntimeError:
            raise RuntimeError("capture was invalidated by an earlier error") from None

    def stumbles(state, batches, key):
        if capturing:
            raise RuntimeError("operation not permitted.\nCompile with ...")
        return update(state, batches, key)

    monkeypatch.setattr(torch.cuda, "graph", graph)
    assert complaint(Cell(stumbles, state, feed).run, state, feed.drawn, error=ModelError) == (
        "This update cannot be captured on a GPU (operation not permitted); use engine = 'looped'."
    )


@needs_gpu
@every_case_and_optimiser
def test_captured_on_a_gpu_equals_looped_on_a_cpu(name, options, optimiser):
    method = settings(name, optimiser, **options)
    there, here = (
        tiny_run(method, (0, 1, 2), engine, stream=tiny_stream(2).to(torch.device(device)),
                 dropout=0.2).theta
        for device, engine in (("cuda", Batched()), ("cpu", Looped()))
    )  # fmt: skip
    torch.testing.assert_close(there, here, rtol=1e-9, atol=1e-9, check_device=False)
