"""Fixtures and helpers of all tests: tiny problems, and the folder of real data."""

import itertools
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import dpmcl
from dpmcl import cli
from dpmcl.core import keys, memory
from dpmcl.core.errors import Errors
from dpmcl.core.keys import Purpose
from dpmcl.core.memory import Offer
from dpmcl.core.model import Kind, Model
from dpmcl.core.tree import leaves, stack
from dpmcl.data.readers import images
from dpmcl.data.readers.pil_images import plain_image
from dpmcl.data.sampling import Supply
from dpmcl.data.splits import Rows, split
from dpmcl.data.stream import Stream
from dpmcl.data.task_info import TaskInfo, task_infos
from dpmcl.engine import Engine, Looped
from dpmcl.exceptions import DataError
from dpmcl.methods._method import Method
from dpmcl.results.record import Record
from dpmcl.streams.digits import Digits
from dpmcl.study import runs
from dpmcl.study.log_lines import logged_to
from dpmcl.training.evaluation import Evaluation
from dpmcl.training.job import measured
from dpmcl.training.keeper import Keeper, Keeping
from dpmcl.training.monitor import MonitorSettings
from dpmcl.training.setup import Setup
from python_process import Ended

# In CI Hypothesis draws the same examples each time, so that no test fails by chance.
hypothesis.settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    hypothesis.settings.load_profile("ci")

LONGEST = ("resume", "on_ray", "studies", "tutorials", "notebooks")
"""Files with the longest tests, which run first, so that all processes end together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem.removeprefix("test_") not in LONGEST)


TINY_SPEC: dict[str, Any] = {
    "replicas": 1,
    "stream": {"name": "digits", "tasks": 2},
    "network": {"name": "mlp", "hidden": 4},
    "training": {"updates": 2, "batch": 4},
    "methods": ["er"],
    "engine": "looped",
    "device": "cpu",
}

SHARES = (0.6, 0.2, 0.2)
"""The usual shares of training, validation and test rows."""

TWO_LOOPS = ("oml", "cml", "anml")

torch.set_num_threads(1)  # the problems are tiny, and the tests run in several processes


@pytest.fixture(scope="session", autouse=True)
def environment() -> None:
    """Share decoded images with other test processes, and leave the other cores to them.

    Runs that last start worker processes only if they set `workers`.
    """
    os.environ["DPMCL_CACHE"] = str(Path(tempfile.gettempdir()) / "dpmcl-test-cache")
    os.environ["LOKY_MAX_CPU_COUNT"] = "1"


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of image files, $DPMCL_DATA. Tests that use it are skipped if it is not set."""
    setting = os.environ.get("DPMCL_DATA", "")
    if setting and Path(setting).is_dir():
        return Path(setting)
    reason = f"needs image files: set DPMCL_DATA to their folder (it is '{setting}')"
    if os.environ.get("CI"):
        pytest.fail(f"in CI this test must run, and {reason}")
    pytest.skip(reason)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no data in the usual folder, and no way to the network."""
    monkeypatch.setenv("DPMCL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DPMCL_DATA", str(tmp_path / "data"))

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a test asked for the network")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    return tmp_path


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the images that were decoded since the test began."""
    names: list[str] = []

    def spy(image, where, *options):
        names.append(where)
        return plain_image(image, where, *options)

    monkeypatch.setattr(images, "plain_image", spy)
    return names


@pytest.fixture(scope="session")
def digits() -> Stream:
    """The stream of all digits."""
    return Digits().build([0])


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """A function that runs the command line in a new folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["dpmcl", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        return Ended(end.value.code, *capsys.readouterr())

    return run


def complaint(make: Callable[..., object], *args: Any, error: Any = DataError, **kw: Any) -> str:
    """Return the message of the error that a call raises, after checking that it is one line."""
    with pytest.raises(error) as caught:
        make(*args, **kw)
    message = str(caught.value)
    assert "\n" not in message
    assert " at 0x" not in message
    assert len(message) < 6000
    return message


@contextmanager
def full_disk() -> Iterator[None]:
    """Let no file grow beyond 1,000 bytes during a block."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def refused(make: Callable[[], object], *parts: str, error: Any = DataError) -> None:
    """Check that a call raises an error whose one-line message contains all parts."""
    message = complaint(make, error=error)
    assert [part for part in parts if part not in message] == [], message


def contents(folder: Path, *patterns: str) -> dict[str, bytes]:
    """The files of a folder whose names match a pattern, or all of them, by path."""
    paths = {p for pattern in patterns or ["*"] for p in folder.rglob(pattern) if p.is_file()}
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(paths)}


def same_bits(first: Any, second: Any) -> bool:
    """Return True if two trees have equal leaves."""
    return all(torch.equal(a, b) for a, b in zip(leaves(first), leaves(second), strict=True))


def random_record(
    entropy: int = 0, *, replicas: int = 3, tasks: int = 3, low: float = 0.0, high: float = 1.0
) -> Record:
    """A record of random errors between two bounds, evaluated on the tasks seen so far."""
    shape = (replicas, 1 + tasks, tasks)
    values = np.random.default_rng(entropy).uniform(low, high, size=shape)
    for after in range(tasks):
        values[:, 1 + after, after + 1 :] = np.nan
    return Record({"test": Errors(tuple(range(replicas)), values, np.ones((replicas, tasks)))})


def tiny_stream(tasks: int = 3, rows: int = 30, seed: int = 0) -> Stream:
    """Two classes per task: well separated clouds of points in the plane, `rows` per class."""
    generator = torch.Generator().manual_seed(seed)
    classes = 2 * tasks
    angle = torch.arange(classes) * (2 * torch.pi / classes)
    centre = 3 * torch.stack([angle.cos(), angle.sin()], 1)
    y = torch.arange(classes).repeat_interleave(rows)
    noise = 0.3 * torch.randn(len(y), 2, generator=generator, dtype=torch.float64)
    return Stream(
        name="tiny",
        kind="classification",
        x=centre[y].to(torch.float64) + noise,
        y=y,
        row=torch.arange(len(y))[None],
        task=(y // 2)[None],
        tasks=tuple(f"task {k}" for k in range(tasks)),
        classes=tuple(f"class {c}" for c in range(classes)),
        outputs=classes,
    )


def own_rows_stream(sizes: list[list[int]]) -> Stream:
    """A stream of different rows for each replica, sizes[replica][task] of them in a task."""
    replicas, tasks = len(sizes), len(sizes[0])
    n = sum(sizes[0])
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(replicas * n, 2, generator=generator, dtype=torch.float64)
    return Stream(
        name="own",
        kind="regression",
        x=x,
        y=x.sum(1, keepdim=True),
        row=torch.arange(replicas * n).view(replicas, n),
        task=torch.stack(
            [torch.arange(tasks).repeat_interleave(torch.tensor(counts)) for counts in sizes]
        ),
        tasks=tuple(f"task {k}" for k in range(tasks)),
        classes=(),
        outputs=1,
    )


def moving_stream(
    tasks: int = 3, trajectories: int = 15, samples: int = 2, replicas: int = 2
) -> Stream:
    """A stream of different points for each replica, which rotate and drift; it has their dynamics.

    A task is a window of time, with `samples` rows of each of `trajectories` points. The pool has
    one more window. Targets are the speeds along the second axis, which move too.
    """
    generator = torch.Generator().manual_seed(0)
    points = (replicas, 1, trajectories, 1)
    radius, phase = (torch.rand(points, generator=generator, dtype=torch.float64) for _ in range(2))
    window = torch.arange(tasks + 1).view(1, -1, 1, 1)
    angle = 0.4 * (window + torch.arange(samples) / samples) + 6 * phase
    radius, angle = torch.broadcast_tensors(0.5 + radius, angle)
    x = torch.stack([radius * angle.cos() + 0.3 * window, radius * angle.sin()], -1)
    return windows(x, radius * angle.cos() + 0.2 * window)


def windows(x: torch.Tensor, y: torch.Tensor) -> Stream:
    """A stream of windows of time, of which the last is beyond the tasks.

    x: (replicas, windows, trajectories, samples, inputs).
    """
    replicas, n, trajectories, samples, _ = x.shape
    number = torch.arange(x[..., 0].numel()).view(replicas, n, -1)
    following = number.clone()
    following[:, :-1] = number[:, 1:]
    trajectory = torch.arange(trajectories).repeat_interleave(samples)
    return Stream(
        name="moving",
        kind="regression",
        x=x.flatten(0, -2),
        y=y.reshape(-1, 1),
        row=number[:, :-1].flatten(1),
        task=torch.arange(n - 1).repeat_interleave(len(trajectory)).repeat(replicas, 1),
        tasks=tuple(f"window {k}" for k in range(n - 1)),
        classes=(),
        outputs=1,
        following=following.flatten(),
        trajectory=trajectory.repeat(replicas * n),
    )


def rows_of(part: Rows, replica: int, task: int) -> list[int]:
    """The rows of a task in a split, for a replica."""
    first, last = part.offset[replica, task : task + 2].tolist()
    assert (part.task[replica, first:last] == task).all()
    return part.row[replica, first:last].tolist()


def supply_of(stream: Stream, seeds: Sequence[int], task: int, **capacity: int) -> Supply:
    """Rows for a task's draws, with a memory of each capacity that was offered earlier tasks."""
    splits = split(stream, seeds, SHARES)
    held = {name: memory_of(splits, seeds, task, size, name) for name, size in capacity.items()}
    return Supply(splits, held, torch.tensor(seeds))


def memory_of(splits, seeds, task, capacity, name):
    """Stacked memories, one per seed, which were offered the rows of the tasks before `task`."""
    memories = []
    for replica, seed in enumerate(seeds):
        filled, offset = memory.empty(capacity), splits.named(name).offset[replica]
        for k in range(task):
            position = torch.arange(int(offset[k]), int(offset[k + 1]))
            offer = Offer(position, torch.ones_like(position, dtype=torch.bool))
            filled = memory.add(filled, offer, keys.derive(seed, Purpose.MEMORY, k), "reservoir")
        memories.append(filled)
    return stack(memories)


class Layer(nn.Module):
    """A layer of one function, and the attributes that it uses."""

    def __init__(self, function: Callable[..., Any], fill: Any = None, **attributes: Any) -> None:
        super().__init__()
        if fill:
            fill(self)
        for name, value in attributes.items():
            setattr(self, name, value)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def tiny_network(outputs: int = 6, dropout: float = 0.0) -> tuple[nn.Module, nn.Module]:
    """h: 2 -> 8 -> 8, g: 8 -> 8 -> outputs."""
    h = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Dropout(dropout))
    g = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, outputs))
    return h, g


def tiny_model(stream: Stream, dtype: torch.dtype = torch.float64, dropout: float = 0.0) -> Model:
    """A model for the tiny stream."""
    return _tiny_model(stream.kind, stream.outputs, dtype, dropout, stream.x.device)


@cache
def _tiny_model(
    kind: Kind, outputs: int, dtype: torch.dtype, dropout: float, device: torch.device
) -> Model:
    """The model; made once, since its check takes longer than many a tiny run."""
    example = torch.linspace(-3, 3, 16, dtype=dtype, device=device).view(8, 2)
    return Model.build(lambda: tiny_network(outputs, dropout), kind, example, outputs, dtype=dtype)


@pytest.fixture
def log_lines() -> Iterator[list[str]]:
    """Log lines of the package during a test."""
    lines: list[str] = []
    with logged_to(lambda line, _: lines.append(line)):
        yield lines


def model_of(stream: Stream, network: Callable[[], Any], dtype=torch.float64, **options) -> Model:
    """A model of a network for the rows of a stream."""
    example, outputs = stream.example(dtype), stream.outputs
    return Model.build(network, stream.kind, example, outputs, dtype=dtype, **options)


def setup_of(
    method: Method,
    stream: Stream,
    seeds: tuple[int, ...] = (0, 1),
    *,
    model: Model | None = None,
    engine: Engine | None = None,
) -> Setup:
    """The setup of a method that learns a stream, with the tiny model and looped by default."""
    return Setup(
        method=method,
        model=method.modelled(model or tiny_model(stream), stream.outputs),
        stream=stream,
        splits=split(stream, seeds, SHARES),
        seeds=seeds,
        engine=engine or Looped(),
    )


def tiny_task(number: int = 0, stream: Stream | None = None) -> TaskInfo:
    """The description of a task, of the tiny stream by default, that a method receives."""
    stream = stream or tiny_stream()
    return task_infos(stream, split(stream, [0], SHARES))[number]


def tiny_run(
    method: Method,
    seeds: tuple[int, ...] = (0, 1),
    engine: Engine | None = None,
    *,
    tasks: int = 3,
    dropout: float = 0.0,
    stream: Stream | None = None,
    model: Model | None = None,
    **observed: Any,
) -> SimpleNamespace:
    """Train a method with all observers, by default on the tiny stream: errors, theta, work, ..."""
    stream = stream or tiny_stream(tasks)
    model = model or tiny_model(stream, dropout=dropout)
    setup = setup_of(method, stream, seeds, model=model, engine=engine)
    default = {
        "evaluation": Evaluation(), "monitor": MonitorSettings(), "keeper": Keeper(Keeping())
    }  # fmt: skip
    outcome = measured(setup, **{**default, **observed})
    record = outcome.record
    return SimpleNamespace(
        errors=record.errors,
        theta=outcome.state.theta,
        work=record.work[seeds[0]],
        diverged=record.diverged,
        readings=record.readings,
    )


def invoke(*words: object) -> str:
    """Return what a command of the command line prints."""
    done = CliRunner().invoke(cli.app, [*map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done.stdout


def run_study(spec, folder=None, **options):
    """Run a study."""
    return runs.run_all([runs.Planned(spec, folder)], **options)[0]


def interrupt(source: Any, when: int | Callable[[str, int, int], bool], **options: Any) -> None:
    """Interrupt a run at a report of progress: its number, or what (method, done, total) fulfil."""
    number = itertools.count(1)

    def leave(*progress: Any) -> None:
        if when(*progress) if callable(when) else next(number) == when:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dpmcl.run(source, progress=leave, **options)


def fail_if_trained(*_: Any) -> None:
    """Report progress, which a run that has nothing to train does not make."""
    raise AssertionError("something was trained")
