"""What every method, stream and metric must do; whatever is found is tested, unedited."""

import numpy as np
import pytest
import torch

import dpmcl.training.loop
from conftest import tiny_model, tiny_run, tiny_stream
from dpmcl import plugins
from dpmcl.core import keys, memory
from dpmcl.core.errors import Errors
from dpmcl.core.memory import Memory
from dpmcl.core.model import initial
from dpmcl.core.tree import at, leaves, tree_map
from dpmcl.data.sampling import chunk
from dpmcl.data.splits import split
from dpmcl.data.stream import Stream
from dpmcl.streams._torchvision_sets import TorchvisionSettings
from dpmcl.training.evaluation import Evaluation

METHODS = plugins.names("method")
METRICS = plugins.names("metric")
STREAMS = plugins.names("stream")


def build(name, **settings):
    base = {"optimiser": "adagrad", "lr": 0.05, "batch": 8, "updates": 60, "memory": 30}
    return plugins.find("method", name)(**{**base, **settings})


@pytest.fixture(scope="module", params=METHODS)
def trained(request):
    """A method of each name, and what it left on the tiny stream."""
    return request.param, tiny_run(build(request.param))


def first_updates(method, task=1):
    """One update of each phase of a task, with a memory that holds the first task."""
    stream = tiny_stream()
    splits = split(stream, [0], (0.6, 0.2, 0.2))
    model = method.prepare(tiny_model(stream))
    state = method.start(at(initial(model, [0]), 0))
    seed = torch.tensor([0])
    own = splits.train.offset[0]
    held = memory.add(
        memory.empty(30),
        own[0],
        own[1],
        int(own[1]),
        keys.derive(0, keys.Purpose.MEMORY),
        "reservoir",
    )
    held = Memory(*(leaf[None] for leaf in held))
    for number, phase in enumerate(method.phases(model, task)):
        both = {"train": held, "validation": held}
        drawn = chunk(phase.draws, splits, both, seed, (task, number), range(1), phase.keys)
        yield phase, state, drawn.batches(stream, model.dtype, 0, 0), drawn.key[0, 0]


@pytest.mark.parametrize("name", METHODS)
def test_an_update_changes_none_of_its_inputs(name):
    for phase, state, batches, key in first_updates(build(name)):
        before = [leaf.clone() for leaf in leaves((state, batches, key))]
        phase.update(state, batches, key)
        after = leaves((state, batches, key))
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_shapes_stay(name):
    for phase, state, batches, key in first_updates(build(name)):
        after = phase.update(state, batches, key)
        shapes = [tree_map(lambda leaf: (leaf.shape, leaf.dtype), tree) for tree in (state, after)]
        assert shapes[0] == shapes[1]


@pytest.mark.parametrize("name", METHODS)
def test_the_same_inputs_give_the_same_update(name):
    for phase, state, batches, key in first_updates(build(name)):
        first, second = (phase.update(state, batches, key) for _ in range(2))
        pairs = zip(leaves(first), leaves(second), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_the_first_task_is_learned(trained):
    errors = trained[1].errors["test"]
    assert errors.after[:, 0, 0].max() <= 0.1
    assert errors.before[:, 0].mean() > 0.3


def test_evaluation_changes_nothing(trained):
    name, outcome = trained
    more = tiny_run(build(name), evaluation=Evaluation(train=True, future=True))
    pairs = zip(leaves(outcome.theta), leaves(more.theta), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    lower = np.tril_indices(3)
    seen = outcome.errors["test"].after[:, lower[0], lower[1]]
    assert np.array_equal(seen, more.errors["test"].after[:, lower[0], lower[1]])
    assert np.isfinite(more.errors["train"].values).all()


def test_every_part_moves(trained):
    name, outcome = trained
    start = initial(build(name).prepare(tiny_model(tiny_stream())), [0, 1])
    for part, parameters in start.items():
        for key, value in parameters.items():
            moved = (outcome.theta[part][key] != value).flatten(1).any(1)
            assert moved.all(), f"{name}: {part}.{key}"


def test_work_is_counted(trained):
    work = trained[1].work
    assert work.gradient_evaluations >= 3 * 60
    assert work.rows_backpropagated >= 8 * work.gradient_evaluations


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("policy", ["reservoir", "resample"])
def test_the_memory_is_bounded_and_holds_rows_of_its_split_only(name, policy, monkeypatch):
    drawn = []
    method = build(name, memory=5, updates=20, memory_policy=policy)

    def spy(draws, splits, held, *rest, **more):
        out = chunk(draws, splits, held, *rest, **more)
        drawn.extend(
            (out.row[n][r][out.present[n][r]], splits.named(draw.split), r)
            for n, draw in draws.items()
            for r in range(2)
            if draw.source == "memory"
        )
        for name, one in held.items():
            assert one.position.shape[1] == 5
            assert int(one.filled.max()) <= 5
            assert (name == "train") or method.trains_on_validation
        return out

    monkeypatch.setattr(dpmcl.training.loop, "chunk", spy)
    tiny_run(method)
    for rows, pool, replica in drawn:
        assert len(rows.unique()) <= 5
        assert set(rows.tolist()) <= set(pool.row[replica].tolist())


@pytest.mark.parametrize("name", METHODS)
def test_training_touches_neither_test_rows_nor_future_tasks(name, monkeypatch):
    touched = []

    def spy(draws, splits, held, seed, place, steps, update_keys, **more):
        out = chunk(draws, splits, held, seed, place, steps, update_keys, **more)
        for n, draw in draws.items():
            for r in range(2):
                rows = out.row[n][r][out.present[n][r]]
                touched.append((set(rows.tolist()), draw.split, place[0], splits, r))
        return out

    monkeypatch.setattr(dpmcl.training.loop, "chunk", spy)
    tiny_run(build(name, updates=20))
    stream = tiny_stream()
    task_of = dict(zip(stream.row[0].tolist(), stream.task[0].tolist(), strict=True))
    for rows, which, task, splits, replica in touched:
        assert rows <= set(splits.named(which).row[replica].tolist())
        assert not rows & set(splits.test.row[replica].tolist())
        assert all(task_of[row] <= task for row in rows)


@pytest.mark.parametrize("name", METHODS)
def test_small_streams_and_batches_work(name):
    outcome = tiny_run(build(name, batch=1, updates=3, memory=1000))
    assert all(leaf.isfinite().all() for leaf in leaves(outcome.theta))


@pytest.mark.parametrize("name", METHODS)
def test_the_optimiser_can_start_anew_at_each_task(name):
    kept, reset = (tiny_run(build(name, updates=5, reset_at_task=r)).theta for r in (False, True))
    same = torch.equal(kept["prediction"]["2.weight"], reset["prediction"]["2.weight"])
    assert same == build(name).restarts


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_a_pure_function_of_the_errors(name):
    rng = np.random.default_rng(0)
    values = rng.random((4, 4, 3))
    errors = Errors((0, 1, 2, 3), values, np.ones((4, 3), dtype=np.int64))
    before = values.copy()
    metric = plugins.find("metric", name)
    found = metric(errors)
    assert found.shape == (4,)
    assert found.dtype == np.float64
    assert np.isfinite(found).all()
    assert np.array_equal(values, before)
    back = Errors((3, 2, 1, 0), values[::-1], errors.examples)
    assert np.allclose(metric(back), found[::-1])


def stream_settings(name, folder):
    """A stream of each name that can be built here: those that need a path get small files."""
    cls = plugins.find("stream", name)
    rng = np.random.default_rng(0)
    y = np.arange(40) % 4
    if name == "table":
        lines = [f"{a:.3f},{kind}" for a, kind in zip(rng.random(40), y, strict=True)]
        (folder / "a.csv").write_text("\n".join(["height,kind", *lines]))
        return cls(path=str(folder / "a.csv"), target="kind", tasks=2)
    if name == "arrays":
        np.savez(folder / "a.npz", x=rng.random((40, 3)), y=y)
        return cls(path=str(folder / "a.npz"), tasks=2)
    if name == "huggingface":
        import datasets

        table = {"height": rng.random(40).tolist(), "label": y.tolist()}
        datasets.Dataset.from_dict(table).save_to_disk(str(folder / "saved"))
        return cls(path=str(folder / "saved"), tasks=2)
    if name == "images":
        from PIL import Image

        for i, kind in enumerate(y):
            (folder / f"kind {kind}").mkdir(exist_ok=True)
            pixels = rng.integers(0, 256, (16, 16), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"kind {kind}" / f"{i}.png")
        return cls(path=str(folder), tasks=2)
    if name == "python":
        return cls(tasks=2).holding(Stream.from_arrays(rng.random((40, 3)), y))
    if issubclass(cls, TorchvisionSettings) and name not in ("mnist", "cifar10", "omniglot"):
        pytest.skip(
            f"the files of '{name}' are not here; tests/streams/test_known_files.py makes some"
        )
    return cls(tasks=2)


@pytest.mark.data
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_delivers_what_it_says(name, data, monkeypatch, tmp_path):
    monkeypatch.setenv("DPMCL_DATA", str(data))
    settings = stream_settings(name, tmp_path)
    stream = settings.build([0, 1])
    assert len(stream.tasks) == 2
    assert stream.row.shape == stream.task.shape
    assert stream.row.shape[0] in (1, 2)
    assert (stream.task.diff() >= 0).all()
    assert stream.scenario
    batch = stream.batch(
        stream.row[:, :4], torch.ones_like(stream.row[:, :4], dtype=torch.bool),
        stream.task[:, :4], torch.float32,
    )  # fmt: skip
    assert batch.x.isfinite().all()
    if stream.kind == "classification":
        assert int(stream.y.max()) < stream.outputs == len(stream.classes)
    network = plugins.find("network", settings.network)()
    h, g = network.build(stream.x.shape[1:], stream.outputs)
    assert g(h(batch.x[0])).shape == (4, stream.outputs)
