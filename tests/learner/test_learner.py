"""A learner is a run whose rows come chunk by chunk: the same step, the same numbers."""

import numpy as np
import pyarrow
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

from conftest import TINY_SPEC, Layer, refused, rows_of, same_bits
from dpmcl import Learner, ModelError, SpecError
from dpmcl.core.tree import leaves
from dpmcl.data.stream import Stream
from dpmcl.exceptions import DivergenceError
from dpmcl.methods.er import ER
from dpmcl.streams.python import Python
from dpmcl.training.job import Job, Trainer
from dpmcl.training.keeper import Keeping
from dpmcl.training.spec import Spec

CLOUDS = np.random.default_rng(0).normal(size=(60, 3)) + np.repeat(np.eye(3) * 6, 20, axis=0)
NAMES = np.repeat(["a", "b", "c"], 20)


def make_learner(**settings):
    return Learner(
        {"name": "mlp", "hidden": 8}, **{"updates": 30, "batch": 8, "lr": 0.1, **settings}
    )


def parameters(learner):
    return tuple(leaves(learner._known.run.replicas.theta))


def trained(stream: Stream, method: str, settings: dict, seeds: int = 2):
    """A run's setup and final parameters, looped."""
    table = {**TINY_SPEC, "replicas": seeds, "stream": {"name": "python", "digest": ""}}
    spec = Spec.parse({**table, "methods": {method: settings}})
    object.__setattr__(spec, "stream", Python(digest="").holding(stream))
    trainer = Trainer(spec, stream)
    job = Job(method, spec.seeds)
    return trainer.setup(job), trainer.run(job, Keeping())


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("er", {"updates": 5, "memory": 7, "optimiser": "adam"}),
        ("naive", {"passes": 1}),
        ("dpmcl", {"updates": 4, "zeta": 2, "memory": 7, "schedule": "cosine"}),
        ("er", {"updates": 3, "memory": 9, "discount": "exponential", "reset_at_task": True}),
        ("dpmcl", {"updates": 3, "memory_policy": "resample", "memory": 40, "zeta": 1}),
        ("oml", {"n_meta": 3, "n_grad": 2, "memory": 7}),
        ("derpp", {"updates": 3, "memory": 9, "compared": "seen"}),
        ("er_ace", {"updates": 9, "memory": 400}),  # 216 rows enter, of 54
        ("gdumb", {"updates": 3, "memory": 9}),
    ],
    ids=str,
)
def test_fed_the_rows_of_a_run_a_learner_ends_with_its_parameters(method, settings):
    x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0)).double()
    y = torch.arange(90) % 6 + 10
    stream = Stream.from_arrays(x, y, classes_per_task=2)
    settings = {"batch": 8, **settings}
    setup, outcome = trained(stream, method, settings)
    network, classes = TINY_SPEC["network"], np.arange(10, 16)
    for seed in (0, 1):
        fed = Learner(
            network, method=method, classes=classes, seed=seed, engine="looped", **settings
        )
        for task in range(3):
            rows = (rows_of(part, seed, task) for part in setup.splits[:2])
            train, validation = ((x[some], y[some]) for some in rows)
            if setup.method.trains_on_validation:
                fed.learn(*train, validation=validation)
            else:
                fed.learn(*train)
        for a, b in zip(leaves(outcome.state.theta), parameters(fed), strict=True):
            assert torch.equal(a[seed], b[0])


@pytest.mark.parametrize(
    "labels",
    [
        ["x", "a", "long one"],
        [7, -3, 1000],
        [True, False, True],
        [2.0, -1.0, 0.0],
        np.array([3, 1, 2], dtype=np.uint8),
        torch.tensor([5, 4, 9]),
    ],
    ids=lambda labels: f"{type(labels).__name__} of {type(labels[0]).__name__}",
)
def test_labels_come_back_as_they_were(labels):
    y = [labels[k] for k in np.repeat([0, 1, 2], 20)]
    y = np.array(y) if isinstance(labels, np.ndarray) else y
    known = make_learner(kind="classification").learn(CLOUDS, y)
    predicted, expected = known.predict(CLOUDS), np.asarray(y)
    assert predicted.dtype == expected.dtype
    assert (predicted == expected).mean() > 0.95
    assert set(known.classes_) == set(expected)


def test_labels_may_be_an_array_of_pyarrow():
    learner = make_learner(updates=1).learn(CLOUDS, pyarrow.array(list(NAMES)))
    assert learner.classes_.tolist() == sorted({*NAMES})
    refused(lambda: learner.learn(CLOUDS[:2], pyarrow.array([NAMES[0], None])), "none at row 1")


def test_labels_keep_their_digits():
    ids = [2**53 + 1, 2**53 + 3]
    learner = make_learner(updates=1).learn(CLOUDS[:2], np.array([ids[0], 5]))
    learner.learn(CLOUDS[:2], np.array([ids[1], 5], dtype=np.uint64))
    assert learner.classes_.tolist() == [5, *ids]
    assert learner.classes_.dtype == np.int64
    learner.learn(CLOUDS[:2], np.array([2**63, 5], dtype=np.uint64))
    assert learner.classes_.tolist() == [5, *ids, 2**63]
    large = make_learner(updates=1).learn(CLOUDS[:2], [2**63, 5])
    assert all(type(label) is int for label in large.classes_.tolist())
    few = make_learner(updates=1).learn(CLOUDS[:2], np.array([0, 1], dtype=np.uint64))
    assert few.learn(CLOUDS[:2], np.array([1, 2])).classes_.dtype == np.int64
    codes = [
        (torch.tensor(x).float(), code) for x, code in zip(CLOUDS, ["007", "10"], strict=False)
    ]
    assert make_learner(updates=1).learn(codes).learn(codes[1:]).classes_.tolist() == ["007", "10"]
    assert make_learner(updates=1).learn(codes[1:]).classes_.tolist() == ["10"]
    learner = make_learner(updates=1).learn(CLOUDS, iter(NAMES))
    assert learner.classes_.tolist() == ["a", "b", "c"]
    assert learner.score_then_learn(CLOUDS, iter(NAMES)) <= 1


def test_classes_are_added_and_what_was_learned_stays():
    two = make_learner(replicas=2, optimiser="sgd", lr=1e-38, updates=1)
    two.learn(CLOUDS[:40], NAMES[:40])
    before = parameters(two)
    start = two._known.setup.start.theta
    ten = np.repeat(list("cdefghij"), 5)
    two.learn(np.repeat(CLOUDS[40:48], 5, axis=0), ten)
    assert two.classes_.tolist() == list("abcdefghij")
    for a, b in zip(before, parameters(two), strict=True):
        assert torch.equal(a, b[tuple(slice(0, size) for size in a.shape)])
    assert [b.shape[1] for b in parameters(two)][-1] == 32
    assert same_bits(tuple(leaves(start)[:2]), parameters(two)[:2])
    new = two.predict_proba(CLOUDS)
    assert new.shape == (60, 10)
    assert np.allclose(new.sum(1), 1)


def test_a_head_that_grew_learns_as_one_that_was_there():
    """Four classes, two a chunk, over three seeds: room, growth and a head of four alike."""
    x = np.random.default_rng(1).normal(size=(160, 2)) + np.repeat(
        [[0, 0], [4, 0], [0, 4], [4, 4]], 40, 0
    )
    y, errors = np.repeat([*"abcd"], 40), {}
    for name, classes in (("whole", [*"abcd"]), ("grown", None)):
        errors[name] = []
        for seed in range(3):
            learner = make_learner(classes=classes, seed=seed, updates=100).learn(x[:80], y[:80])
            errors[name].append(learner.learn(x[80:], y[80:]).evaluate(x, y))
    assert max(errors["grown"]) < 0.15
    assert abs(np.mean(errors["grown"]) - np.mean(errors["whole"])) < 0.05


def test_replicas_are_learners_of_their_seeds_and_their_mean_predicts():
    apart = [make_learner(seed=seed).learn(CLOUDS, NAMES).predict_proba(CLOUDS) for seed in (4, 5)]
    mean, std = make_learner(seed=4, replicas=2).learn(CLOUDS, NAMES).predict_proba(CLOUDS, True)
    np.testing.assert_allclose(mean, np.mean(apart, axis=0), atol=1e-4)
    np.testing.assert_allclose(std, np.std(apart, axis=0), atol=1e-4)
    assert std.max() > 0


def test_a_method_keeps_the_memory_that_it_was_made_with():
    for arguments, memory in (({}, 7), ({"memory": 5}, 5)):
        learner = make_learner(method=ER(memory=7), **arguments).learn(CLOUDS, NAMES)
        assert len(learner._known.held.x) == memory


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_answer_for_a_row_does_not_depend_on_the_rows_beside_it(replicas):
    x = np.random.default_rng(0).normal(size=(300, 20))
    learner = make_learner(replicas=replicas).learn(x, x[:, 0] > 0)
    alone = np.concatenate([learner.predict_proba(row[None]) for row in x])
    assert (learner.predict_proba(x) == alone).all()


BLOCKS = []


def tokens(self, x):
    BLOCKS.append(len(x))
    return self.head(self.embedding(x.long()).mean(1))


def test_a_network_that_is_not_dense_predicts_no_more_rows_than_there_are():
    """Its rows cost too much to be predicted in blocks of one size."""
    x = np.random.default_rng(0).integers(0, 10, (300, 4))
    network = Layer(tokens, embedding=nn.Embedding(10, 4), head=nn.Linear(4, 8))
    learner = Learner(network, updates=1).learn(x, x[:, 0] > 4)
    for rows, blocks in ((1, [1]), (300, [256, 256])):
        BLOCKS.clear()
        learner.predict(x[:rows])
        assert blocks == BLOCKS


def test_a_stream_without_end_needs_no_more_room():
    learner, rng = make_learner(memory=20, updates=1, method="er"), np.random.default_rng(0)

    def size():
        known = learner._known
        tensors = leaves((tuple(known.run.replicas), dict(known.run.memories)))
        return sum(t.nbytes for t in tensors) + known.held.x.nbytes + known.held.task.nbytes

    sizes = []
    for chunk in range(40):
        learner.learn(rng.normal(size=(10, 3)), [chunk % 3] * 10)
        sizes.append(size())
    assert len({*sizes[3:]}) == 1
    held = learner._known.held
    assert len(held.x) == 20
    assert len(held.task.unique()) > 8  # chunks of all ages
    assert learner._known.rows == 400


class Arrow:
    """A table of another library, as polars has them: an array of it has no names."""

    def __init__(self, frame):
        self.frame, self.columns = frame, list(frame.columns)
        self.__arrow_c_stream__ = frame.__arrow_c_stream__

    def __array__(self, dtype=None, copy=None):
        return self.frame.to_numpy()


def test_a_table_is_read_by_its_columns():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({
        "when": 1.7e9 + np.arange(60.0), "colour": np.repeat(["red", "blue"], 30), "kind": NAMES,
    })  # fmt: skip
    learner = make_learner(updates=100).learn(frame, "kind")
    other = learner.predict(frame[["colour", "when"]])  # in another order
    assert (other == NAMES).mean() > 0.8
    assert learner._known.form.inputs.columns == ("when", "colour=blue", "colour=red")
    rows = frame.drop(columns="kind")
    assert (learner.predict(rows.assign(kind=None)) == other).all()
    refused(lambda: learner.predict(rows.assign(more=1)), "'more' is new")
    refused(lambda: learner.predict(rows[["when"]]), "'colour' is missing")
    both = ["kind", "when"]  # would be the labels of two rows
    refused(lambda: learner.learn(frame, frame.kind), "y is column 'kind' of x", "learn(x, 'kind')")
    refused(lambda: learner.learn(frame[:2], both), "y names one column", "got 'kind', 'when'")
    refused(
        lambda: learner.predict(rows.replace("red", "pink")), "got 'pink' in row 0", "'blue', 'red'"
    )
    hues = pandas.CategoricalDtype(["red", "blue", "pink"])
    more = make_learner(updates=2).learn(frame.astype({"colour": hues}), "kind")
    assert more._known.form.inputs.columns[1:] == ("colour=blue", "colour=pink", "colour=red")
    more.learn(frame.replace("red", "pink"), "kind")
    hues = pandas.CategoricalDtype(["red", "blue", "two\nlines"])
    refused(
        lambda: make_learner().learn(frame.astype({"colour": hues}), "kind"), "in its categories"
    )
    twice = pandas.concat([frame, frame[["when"]]], axis=1)
    refused(lambda: learner.learn(twice), "columns of different names")
    indexed = frame.rename(columns={"when": ""})  # as a file that pandas wrote with the index
    refused(lambda: make_learner().learn(indexed, "kind"), "has '', 'colour'", "an index")
    odd = [*map(str, range(59)), "x"]
    refused(
        lambda: learner.predict(rows.assign(when=odd)), "'when' must hold numbers", "'x' in row 59"
    )
    refused(lambda: learner.predict(rows.assign(when=rows.when.astype("category"))), "Categorical")
    short = {"when": [1.0], "colour": ["red"] * 2}
    refused(lambda: learner.predict(short), "expected length 1 but got length 2")
    other = Arrow(rows[["colour", "when"]])
    assert (learner.predict(other) == learner.predict(rows)).all()
    other.__arrow_c_stream__ = {}.pop
    refused(lambda: learner.predict(other), "the rows cannot be read")
    dates = rows.assign(when=pandas.to_datetime(rows.when))
    refused(lambda: make_learner().learn(dates, NAMES), "'when'", "leave the column out")
    refused(lambda: learner.predict(rows.assign(when=np.nan)), "'when'", "missing")
    refused(lambda: learner.predict(rows.to_numpy()), "must be a table")


def test_grey_images_are_read_among_those_of_colour():
    """A chunk of grey ones alone, one image perhaps, has one channel."""
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 255, (20, 6, 6)).astype("uint8")
    grey = [(image.fromarray(each), k % 2) for k, each in enumerate(pixels)]
    learner = make_learner(updates=2).learn([(each.convert("RGB"), k) for each, k in grey])
    colour = np.stack([pixels] * 3, axis=1)
    other = learner.predict_proba(colour)
    assert (learner.predict_proba(pixels[:, None]) == other).all()
    assert learner.evaluate(grey) == learner.evaluate(colour, np.arange(20) % 2)
    assert learner.learn(grey)._known.held.x.shape == (40, 3, 6, 6)
    refused(lambda: learner.predict(pixels[:, None] / 255), "Inputs must be uint8")
    refused(lambda: make_learner(updates=1).learn(grey).learn(colour, range(20)), "(rows, 1, 6, 6)")


def test_images_of_hugging_face_need_labels_only_where_they_are_learned():
    datasets = pytest.importorskip("datasets")
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 4, 4), dtype=np.uint8)
    images = datasets.Dataset.from_dict(
        {"image": [image.fromarray(each) for each in pixels]},
        features=datasets.Features({"image": datasets.Image()}),
    )
    labels = ["a", "b"] * 6
    expected = make_learner(updates=2).learn(pixels[:, None], labels).predict_proba(pixels[:, None])
    for name in ("label", "kind"):
        data = images.add_column(name, labels)
        learner = make_learner(updates=2).learn(data, None if name == "label" else name)
        assert (learner.predict_proba(images) == expected).all()
        assert learner.evaluate(data) == (learner.predict(data) != labels).mean()
    assert (make_learner(updates=2).learn(images, labels).predict_proba(data) == expected).all()
    refused(lambda: learner.learn(images), "no 'kind'")


def test_labels_of_a_column_stay_text_where_they_were(tmp_path):
    """In memory "7" is text; in a file it is where other labels of the column are."""
    rows = {"size": [1.0, 2.0] * 9, "code": ["7", "10"] * 9}
    assert make_learner(updates=1).learn(rows, "code").classes_.tolist() == ["7", "10"]
    lines = ["size,code", *(f"{x},{code}" for x, code in zip(*rows.values(), strict=True))]
    file = tmp_path / "rows.csv"
    file.write_text("\n".join(lines))
    learner = make_learner(updates=1)
    learner.score_then_learn(file, "code")
    assert learner.classes_.tolist() == [7, 10]
    learner = make_learner(updates=1, classes=["7a", "7", "10"]).learn(file, "code")
    assert {*learner.predict(file)} <= {"7a", "7", "10"}
    assert learner.evaluate(file) < 1
    prices = {"size": np.ones(101), "price": np.arange(101)}
    refused(lambda: make_learner().learn(prices, "price"), "'price'", "classes or amounts")


@pytest.mark.parametrize("read", [list, np.array, torch.tensor])
def test_true_and_false_are_one_and_zero_in_any_type(read, log_lines):
    flags = (CLOUDS > 3).tolist()
    learner = make_learner().learn(read(flags), NAMES)
    answers = learner.predict_proba(read(flags))
    assert (learner.predict_proba(np.array(flags, dtype=np.int64)) == answers).all()
    bytes_ = np.array(flags, dtype=np.uint8)
    refused(lambda: learner.predict(bytes_), "must be numbers", "got uint8 (0 to 255 for 0 to 1)")
    images = make_learner().learn(bytes_ * 255, NAMES)
    assert (images.predict_proba(read(flags)) == images.predict_proba(bytes_ * 255)).all()
    assert not log_lines
    make_learner(updates=1).learn(bytes_, NAMES)
    assert ["x / 255" in line for line in log_lines] == [True]


def test_regression_comes_back_in_its_own_units():
    x = np.random.default_rng(0).normal(size=(200, 2)) * [1, 1000] + [0, 5e6]
    y = 3e4 + 100 * x[:, 0] + x[:, 1] / 10
    learner = make_learner(scale=True, updates=300).learn(x[:100], y[:100]).learn(x[100:], y[100:])
    assert learner.predict(x).shape == (200,)
    assert learner.evaluate(x, y) < 0.1 * y.var()
    assert learner.predict(x, return_std=True)[1].max() == 0
    refused(lambda: learner.predict_proba(x), "no classes", error=SpecError)
    refused(lambda: learner.evaluate(x, np.stack([y, y], 1)), "must have 1 values a row, ", "got 2")
    refused(lambda: learner.evaluate(x, y * np.nan), "Targets must be finite")
    wide = make_learner(kind="regression", updates=1).learn(x - [0, 5e6], y / 1e4)
    refused(lambda: wide.predict(x * 1e300), "no finite answer for row 0")


def bce(outputs, targets):
    cost = nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    return cost.mean(1)


@pytest.mark.parametrize(
    ("targets", "settings", "warned"),
    [
        (CLOUDS > 3, {"scale": True, "cost": bce}, True),
        (CLOUDS > 3, {"scale": False, "cost": bce}, False),
        (CLOUDS > 3, {"scale": True, "cost": "huber"}, False),
        (CLOUDS, {"scale": True, "cost": bce}, False),
    ],
)
def test_whole_targets_that_are_scaled_for_a_cost_of_ones_own_are_named(
    targets, settings, warned, log_lines
):
    learner = make_learner(kind="regression", updates=1, **settings)
    learner.learn(CLOUDS, targets.astype(float)).learn(CLOUDS, targets.astype(float))
    assert ["test_learner:bce' gets targets" in line for line in log_lines] == [True] * warned


def test_a_data_set_of_pytorch_is_a_chunk():
    items = [(torch.tensor(x).float(), label) for x, label in zip(CLOUDS, NAMES, strict=True)]
    assert make_learner().learn(items).evaluate(items) < 0.1
    data = TensorDataset(torch.tensor(CLOUDS), torch.arange(60) // 20)
    learner = make_learner().learn(data)
    answers = learner.predict_proba(CLOUDS)
    inputs = Subset(torch.tensor(CLOUDS), range(60))  # whose items are no pairs
    for rows in (data, TensorDataset(torch.tensor(CLOUDS)), inputs):
        assert (learner.predict_proba(rows) == answers).all()
    refused(lambda: learner.predict(DataLoader(inputs)), "got a DataLoader", "its `dataset`")
    views = [(x, x, label) for x, label in items]  # the second input was taken for the target
    refused(lambda: make_learner().learn(views), "pairs (x, y)", "'list' have three parts")
    numbers = [(x, 0.5 * number) for number, (x, _) in enumerate(items)]
    assert make_learner(updates=1).learn(numbers).predict(CLOUDS).shape == (60,)
    several = torch.eye(3, dtype=torch.int64)[torch.arange(60) // 20]
    learner = make_learner(kind="regression", updates=1).learn(CLOUDS, several)
    pairs = TensorDataset(torch.tensor(CLOUDS), several)
    assert learner.evaluate(pairs) == learner.evaluate(CLOUDS, several)
    again = make_learner(kind="regression", updates=1).learn(pairs)
    assert (again.predict(pairs) == learner.predict(CLOUDS)).all()


def test_a_data_set_of_hugging_face_is_read_by_its_columns():
    datasets = pytest.importorskip("datasets")
    columns = {"size": CLOUDS[:, 0], "hue": ["red", "blue", "red"] * 20, "label": NAMES}
    data = datasets.Dataset.from_dict(columns)
    hues = datasets.ClassLabel(names=["blue", "pink", "red"])
    learner = make_learner().learn(data)
    assert (learner.predict(data) == learner.predict(columns)).all()
    other = data.select_columns(["label", "hue", "size"])  # in another order
    assert (learner.predict_proba(other) == learner.predict_proba(data)).all()
    pink = data.remove_columns("hue").add_column("hue", ["red", "pink", "red"] * 20)
    refused(lambda: learner.learn(pink), "'blue', 'red'", "got 'pink' in row 1")
    learner = make_learner().learn(data.cast_column("hue", hues), "label").learn(pink)
    assert learner._known.form.inputs.columns == ("size", "hue=blue", "hue=pink", "hue=red")
    inputs = {name: columns[name] for name in ("size", "hue")}
    make_learner(updates=1).learn(inputs, NAMES).learn(data)  # the target was in no column before
    numbers = pink.cast_column("hue", hues).map(lambda row: {"hue": -1})
    refused(lambda: learner.learn(numbers), "'hue'", "missing")
    refused(lambda: learner.learn(data.rename_column("label", "kind"), None), "No column 'label'")


WRONG = {
    "another shape": (lambda learner: learner.learn(CLOUDS[:, :2], NAMES), "shape (rows, 3)"),
    "another type": (
        lambda learner: learner.learn(CLOUDS.astype(np.uint8), NAMES),
        "must be numbers",
    ),
    "nan": (lambda learner: learner.learn(CLOUDS * np.nan, NAMES), "must be finite"),
    "other labels": (lambda learner: learner.learn(CLOUDS, [1] * 60), "must be strings"),
    "lengths": (lambda learner: learner.learn(CLOUDS, NAMES[:9]), "60 rows and 9"),
    "no targets": (lambda learner: learner.learn(CLOUDS), "needs targets"),
    "no labels": (lambda learner: learner.learn(CLOUDS, []), "60 rows and 0"),
    "no rows": (lambda learner: learner.learn(CLOUDS[:0], NAMES[:0]), "no rows"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rows_are_refused_and_the_learner_stays_as_it_was(name):
    learner, call_and_part = make_learner().learn(CLOUDS, NAMES), WRONG[name]
    known, before = learner._known, learner.predict_proba(CLOUDS)
    refused(lambda: call_and_part[0](learner), call_and_part[1])
    assert learner._known is known
    assert (learner.predict_proba(CLOUDS) == before).all()


class Learning(TensorDataset):
    """Rows whose reading calls learn, as another thread would."""

    def __getitem__(self, row):
        if row == 0:
            self.learner.learn(CLOUDS, NAMES)
        return super().__getitem__(row)


def test_no_chunk_is_lost_that_another_call_learns_meanwhile():
    learner = make_learner(updates=1)
    rows = Learning(torch.tensor(CLOUDS), torch.arange(60) // 20)
    rows.learner = learner
    refused(lambda: learner.learn(rows), "would be lost", error=SpecError)
    assert learner._known.chunks == 1
    assert learner.classes_.tolist() == ["a", "b", "c"]


def test_wrong_arguments_are_refused():
    made, rows, over = make_learner, (CLOUDS, NAMES), {"name": "cosine", "over": "run"}
    for use, part in (
        (lambda: made().predict(CLOUDS), "learn(x, y) first"),
        (lambda: made(updates=0), "updates"),
        (lambda: made(memory=0), "memory must be"),
        (lambda: Learner(method="err"), "Did you mean 'er'"),
        (lambda: Learner(method=ER(), zeta=2), "No setting 'zeta'"),
        (lambda: made(scale="no"), "scale must be"),
        (lambda: made(frozen=["0"]), "modules of your own"),
        (lambda: made(method="joint").learn(*rows), "keeps only"),
        (
            lambda: made(method="oml").learn(*rows),
            "or rows, as in learn(x, y, validation=(u, v)), got",
        ),
        (lambda: made(method="oml").learn(*rows, validation=CLOUDS), "inputs and their targets"),
        (lambda: made(validation=0.1), "leave it out"),
        (lambda: made().learn(*rows, validation=rows), "leave it out"),
        (lambda: made(schedule=over).learn(*rows), "over to 'task'"),
    ):
        refused(use, part, error=SpecError)
    refused(lambda: made(classes=["a", "a"]), "each class once")
    refused(lambda: made(classes=[]), "at least one class")
    refused(lambda: made(classes=["a"]).learn(*rows), "among the classes 'a'", "'b'")
    refused(lambda: Learner(3), "a module, two modules", error=ModelError)
    wild = made(optimiser="sgd", lr=1e30)
    refused(lambda: wild.learn(*rows), "is unchanged", error=DivergenceError)
    assert repr(wild) == "Learner(replay, mlp, nothing learned)"


def test_an_error_in_prepare_names_its_line():
    method = type("Fails", (ER,), {"prepare": lambda *_: {}["part"]})
    with pytest.raises(ModelError, match=r"^`prepare` of 'Fails' fails at .*KeyError: 'part'"):
        make_learner(method=method).learn(CLOUDS, NAMES)
