"""What every method and stream must do; whatever is found is tested, unedited."""

import numpy as np
import pytest
import torch

import dpmcl.training.setup
from conftest import same_bits, tiny_model, tiny_run, tiny_stream, tiny_task
from dpmcl import plugins
from dpmcl.core.model import initial_weights
from dpmcl.core.tree import leaves
from dpmcl.data.sampling import draw_rows
from dpmcl.data.stream import Stream
from dpmcl.engine import Batched
from dpmcl.exceptions import SpecError
from dpmcl.streams._torchvision_sets import TorchvisionSettings
from dpmcl.testing import check_method, check_stream
from dpmcl.training.evaluation import Evaluation

METHODS = plugins.names("method")
STREAMS = plugins.names("stream")


def build(name, **settings):
    base = {"optimiser": "adagrad", "lr": 0.05, "batch": 8, "updates": 60, "memory": 30}
    base |= {"fisher_rows": 16} if name == "ewc" else {}
    return plugins.find("method", name)(**{**base, **settings})


@pytest.mark.parametrize("name", METHODS)
def test_every_promise_of_a_method_is_kept(name):
    check_method(build(name, batch=4, updates=3, memory=20))


@pytest.mark.parametrize("name", METHODS)
def test_the_first_task_is_learned_and_every_part_moves(name):
    outcome = tiny_run(build(name), tasks=2)
    errors = outcome.errors["test"]
    assert errors.after[:, 0, 0].max() <= 0.1
    assert errors.before[:, 0].mean() > 0.2
    start = initial_weights(build(name).prepare(tiny_model(tiny_stream(2))), [0, 1])
    for part, parameters in start.items():
        for key, value in parameters.items():
            moved = (outcome.theta[part][key] != value).flatten(1).any(1)
            assert moved.all(), f"{name}: {part}.{key}"
    assert outcome.work.gradient_evaluations >= 2 * 60
    rows = outcome.work.rows_backpropagated + outcome.work.rows_head
    assert rows >= 8 * 2 * 60


@pytest.mark.parametrize("name", ["er", "gdumb", "oml"])
def test_more_evaluation_changes_nothing(name):
    method = build(name, updates=5)
    outcome = tiny_run(method)
    more = tiny_run(method, evaluation=Evaluation(train=True, future=True))
    assert same_bits(outcome.theta, more.theta)
    lower = np.tril_indices(3)
    seen = outcome.errors["test"].after[:, lower[0], lower[1]]
    assert np.array_equal(seen, more.errors["test"].after[:, lower[0], lower[1]])
    assert np.isfinite(more.errors["train"].values).all()


@pytest.mark.parametrize(
    ("name", "policy"), [*((name, "reservoir") for name in METHODS), ("er", "resample")]
)
def test_training_sees_no_test_row_no_future_task_and_a_bounded_memory(name, policy, monkeypatch):
    method = build(name, memory=5, updates=10, memory_policy=policy)
    task_of = dict(zip(tiny_stream().row[0].tolist(), tiny_stream().task[0].tolist(), strict=True))
    held = set()

    def spy(draws, supply, position, steps, **more):
        out = draw_rows(draws, supply, position, steps, **more)
        for memory_ in supply.held.values():
            assert memory_.position.shape[1] == 5 >= int(memory_.filled.max())
        assert ("validation" in supply.held) == method.trains_on_validation
        for key, draw in draws.items():
            for r in range(2):
                rows = set(out.row[key][r][out.present[key][r]].tolist())
                assert rows <= set(supply.splits.named(draw.split).row[r].tolist())
                assert not rows & set(supply.splits.test.row[r].tolist())
                assert all(task_of[row] <= position[0] for row in rows)
                if draw.source == "memory":
                    assert len(rows) <= 5
                    held.update(rows)
        return out

    monkeypatch.setattr(dpmcl.training.setup, "draw_rows", spy)
    tiny_run(method)
    remembers = getattr(method, "enters", "after") == "during"
    assert bool(held) == (method.stores != "never" or method.trains_on_validation or remembers)


@pytest.mark.parametrize("name", METHODS)
def test_small_batches_work_and_the_optimiser_can_start_anew(name):
    kept, reset = (
        tiny_run(build(name, batch=1, updates=3, memory=1000, reset_at_task=r)).theta
        for r in (False, True)
    )
    assert all(leaf.isfinite().all() for leaf in leaves((kept, reset)))
    assert same_bits(kept["prediction"], reset["prediction"]) == (name in ("gdumb", "joint"))


@pytest.mark.parametrize("name", METHODS)
def test_whole_passes_take_the_place_of_updates(name):
    """Twice over 36 rows in batches of 8, or over the 72 seen so far; nested, three at a time.

    GDumb goes over the 30 of its memory, and EWC over 16 for its Fisher information.
    """
    task, model = tiny_task(1), tiny_model(tiny_stream())
    method = build(name, passes=2)
    phases = method.phases(method.prepare(model), task)
    updates = {"joint": [18], "gdumb": [8], "ewc": [10, 2]}.get(name, [10] * len(phases))
    assert [phase.updates for phase in phases] == updates
    draws = [draw for phase in phases for draw in phase.draws.values()]
    assert all(draw.replace == (draw.source == "memory" and name != "gdumb") for draw in draws)
    if "reading" in method.names():
        method = build(name, passes=2, reading="nested", inner=3)
        (phase,) = method.phases(method.prepare(model), task)
        assert (phase.updates, phase.draws["new"].replace) == (4, False)
    assert tiny_run(method).theta["prediction"]["2.weight"].isfinite().all()


def unusual_streams():
    """Streams by what is unusual in them: 60 rows in two or three tasks."""
    x = np.random.default_rng(0).normal(size=(60, 2))
    third, y = np.arange(60) // 20, np.arange(60) % 4
    again = y % 2 + (third == 1)

    def of(y, **own):
        return Stream.from_arrays(x, y, **own)

    return {
        "regression, blurred": of(x @ [[1.0], [2.0]] + third[:, None], task=third, blur=0.3),
        "no class is left to come": of(y % 2, classes_per_task=1),
        "a task of three rows": of(np.repeat([0, 1, 2], [28, 3, 29]), classes_per_task=1),
        "answers within a task": of(y, classes_per_task=2, scenario="task-incremental"),
        "classes come again": of(again, task=third),
    }


@pytest.mark.parametrize("name", METHODS)
def test_unusual_streams_are_learned_or_refused(name):
    """The one that no other test has for every method, a regression, in both engines."""
    for what, stream in unusual_streams().items():
        method, model = build(name, updates=3, batch=4, memory=10), tiny_model(stream)
        if (name, stream.kind) == ("er_ace", "regression"):
            with pytest.raises(SpecError, match="a regression has none; use 'replay', or 'derpp'"):
                tiny_run(method, (0,), stream=stream)
            continue
        looped = tiny_run(method, (0,), stream=stream)
        assert np.isfinite(looped.errors["test"].values[:, -1]).all(), what
        assert not same_bits(looped.theta, initial_weights(method.prepare(model), (0,))), what
        if stream.kind == "regression":
            batched = tiny_run(method, (0,), Batched(), stream=stream)
            torch.testing.assert_close(looped.theta, batched.theta, rtol=1e-9, atol=1e-9)


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
    check_stream(settings)
    assert stream.scenario
    batch = stream.batch(
        stream.row[:, :4], torch.ones_like(stream.row[:, :4], dtype=torch.bool),
        stream.task[:, :4], torch.float32,
    )  # fmt: skip
    network = plugins.find("network", settings.network)()
    h, g = network.build(stream.x.shape[1:], stream.outputs)
    assert g(h(batch.x[0])).shape == (4, stream.outputs)
