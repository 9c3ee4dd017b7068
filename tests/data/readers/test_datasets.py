import json
import sys
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)

import conftest
from dpmcl.data.readers import datasets as readers
from dpmcl.data.stream import Stream
from dpmcl.exceptions import SpecError
from dpmcl.streams.huggingface import HuggingFace


class Items(Dataset):
    """A map-style dataset of these items."""

    def __init__(self, items, classes=None):
        self.items = items
        if classes is not None:
            self.classes = classes

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        item = self.items[index]
        if isinstance(item, Exception):
            raise item
        return item


def read_dataset(dataset, name=None, **settings):
    return readers.read_dataset(dataset, readers.DatasetSettings(**settings), name)


def refused(dataset, *parts: str, **options) -> None:
    conftest.refused(lambda: read_dataset(dataset, **options), *parts)


def picture(mode: str = "RGB", size: tuple[int, int] = (5, 4), value: int = 0) -> Image.Image:
    """An image whose pixels all differ. size: (width, height)."""
    width, height = size
    values = np.arange(height * width * 3, dtype=np.uint8).reshape(height, width, 3) + value
    return Image.fromarray(values).convert(mode)


# ---- PyTorch's -----------------------------------------------------------------------------------


def test_a_tensor_dataset():
    x, y = torch.rand(6, 3), torch.tensor([5, 3, 5, 3, 9, 9])
    data = read_dataset(TensorDataset(x, y, y * 2))
    assert (data.name, data.kind) == ("TensorDataset", "classification")
    assert torch.equal(data.x, x)
    assert (data.classes, data.y.tolist()) == (("3", "5", "9"), [1, 0, 1, 0, 2, 2])
    assert (data.tasks, data.task.tolist()) == (("6", "10", "18"), [1, 0, 1, 0, 2, 2])


@pytest.mark.parametrize(
    ("inputs", "dtype", "values"),
    [
        ([torch.tensor([1, 2], dtype=torch.uint8)] * 2, torch.uint8, [1, 2]),
        ([np.array([1.5, 2], ">f4")] * 2, torch.float32, [1.5, 2]),
        ([torch.tensor([1.5, 2], dtype=torch.bfloat16)] * 2, torch.float32, [1.5, 2]),
        ([[1, 2], [1.5, 2]], torch.float64, [1, 2]),
        ([torch.tensor(0.5, requires_grad=True)] * 2, torch.float32, [0.5]),
        ([np.array([0.5]), np.array([1], np.float32)], torch.float64, [0.5]),
    ],
)
def test_inputs(inputs, dtype, values):
    data = read_dataset([(value, f"class {i}") for i, value in enumerate(inputs)])
    assert data.x.dtype == dtype
    assert data.x[0].tolist() == values


@pytest.mark.parametrize(
    ("labels", "classes", "y"),
    [
        (["b", np.str_("a"), "b"], ("a", "b"), [1, 0, 1]),
        ([torch.tensor(7), torch.tensor([3]), np.int64(7)], ("3", "7"), [1, 0, 1]),
        ([torch.tensor(0.5), np.float32(1), 2], (), [[0.5], [1], [2]]),
        ([torch.tensor([0.5, 1.0])] * 3, (), [[0.5, 1]] * 3),
    ],
)
def test_labels_and_targets(labels, classes, y):
    data = read_dataset([([0.5], label) for label in labels])
    assert (data.classes, data.y.tolist()) == (classes, y)


def test_names_of_classes():
    items = [([0.5], 3), ([0.6], 0), ([0.7], 3), ([0.8], 1)]
    names = ["zebra", "ant", "none", "bee"]
    data = read_dataset(Items(items, names))
    assert (data.classes, data.y.tolist()) == (("zebra", "ant", "bee"), [2, 0, 2, 1])
    assert data.notes == ("classes: named by the Items's `classes`, in its order",)
    part = read_dataset(Subset(Subset(Items(items, tuple(names)), [3, 2, 0]), [0, 2]))
    assert (part.classes, part.y.tolist()) == (("ant", "bee"), [0, 1])
    assert read_dataset(Items(items, names), kind="regression").y.tolist() == [[3], [0], [3], [1]]
    for odd in (["a", "b"], ["a", "a", "b", "b"], 7):
        assert read_dataset(Items(items, odd)).classes == ("0", "1", "3")
    changed = Items(items, names)
    changed.target_transform = lambda label: label  # as torchvision's sets have
    assert read_dataset(Subset(changed, [0, 1, 2, 3])).classes == ("0", "1", "3")
    both = read_dataset(ConcatDataset([Items(items[:2], names), Items(items[2:], names)]))
    assert (both.classes, both.y.tolist()) == (data.classes, data.y.tolist())
    for other in (["bee", "ant", "zebra"], None):  # 0 is the zebra of one, and the bee of another
        refused(ConcatDataset([Items(items, names), Items(items, other)]), "'ant'", "one part at")


def test_items_that_are_dicts():
    items = [{"pixels": np.uint8([i, i]), "is": "ab"[i % 2], "day": i // 2} for i in range(4)]
    data = read_dataset(items, x="pixels", y="is", task="day")
    assert data.x.tolist() == [[i, i] for i in range(4)]
    assert (data.classes, data.tasks) == (("a", "b"), ("0", "1"))
    refused(items, "no 'label' for y", "'is'", x="pixels", y="label")
    refused([([0.5], 1)], "(x, y)", "named are 'pixels'", x="pixels")
    named = {"x": "pixels", "y": "is", "task": "day", "scenario": "class-incremental"}
    line = conftest.complaint(Stream.from_dataset, items, error=SpecError, **named)
    assert "both say what the tasks are" in line


class Endless(IterableDataset):
    def __iter__(self):
        return iter([([0.5], 1)])


@pytest.mark.parametrize(
    ("dataset", "parts"),
    [
        (Endless(), ["map-style", "Endless", "list"]),
        (DataLoader([([0.5], 1)]), ["map-style", "DataLoader", "give its `dataset`"]),
        ([], ["one at least"]),
        ({"train": [], "test": []}, ["single", "'train', 'test'", "pick"]),
        (
            pa.table({"size": [1], "kind": [2]}),
            ["Table with the keys 'size', 'kind'", "from_table"],
        ),
        ([([0.5], 1), [0.5]], ["item 1", "list with 1 parts"]),
        (Items([([0.5], 1), KeyError("no\nfile")]), ["Item 1", "KeyError: "]),
        (Items([([0.5], 1), ValueError("bad\nfile")]), ["Item 1", "bad file"]),
        ([([0.5], 1), ([0.5, 1], 2)], ["one shape", "item 0", "(1,)", "item 1", "(2,)", "resize"]),
        ([(np.zeros(2, np.uint8), 1), (np.zeros(2), 2)], ["one type", "uint8", "float64"]),
        ([(np.array([1j]), 1)], ["numbers of one shape", "complex"]),
        ([([0.5], None)], ["got none at row 0"]),
        ([([0.5], [0.5, 1]), ([0.5], 1.0)], ["one shape", "(2,) and ()"]),
        ([([0.5], 1), ([0.5], 2, "a")], ["needs a task", "item 1"]),
    ],
)
def test_what_cannot_be_used(dataset, parts):
    refused(dataset, *parts)


# ---- Hugging Face's ------------------------------------------------------------------------------

NAMES = ["zebra", "ant", "none", "bee"]
LABEL = datasets.ClassLabel(names=NAMES)


def pictures(rows: int = 6, mode: str = "RGB", size: tuple[int, int] = (5, 4), **columns):
    made = {
        "image": [picture(mode, size, 9 * i) for i in range(rows)],
        "label": [(3, 0, 1)[i % 3] for i in range(rows)],
        **columns,
    }
    kinds = {"image": datasets.Image(), "label": LABEL}
    out = datasets.Dataset.from_dict(made)
    for column, kind in kinds.items():
        out = out.cast_column(column, kind)
    return out


@pytest.mark.parametrize("mode", ["RGB", "L", "1"])
def test_pictures_of_a_dataset(mode):
    dataset = pictures(mode=mode)
    data = read_dataset(dataset)
    assert (data.name, data.kind) == ("dataset", "classification")
    assert (data.classes, data.y.tolist()) == (("zebra", "ant", "bee"), [2, 0, 1, 2, 0, 1])
    assert data.x.shape == (6, 3 if mode == "RGB" else 1, 4, 5)
    by_items = read_dataset([(row["image"], row["label"]) for row in dataset])
    assert torch.equal(by_items.x, data.x)
    grey = dataset.cast_column("image", datasets.Image(mode="L"))
    pixels = np.stack([np.asarray(row["image"]) for row in grey])  # as `datasets` decodes them
    assert np.array_equal(read_dataset(grey).x[:, 0], pixels)


def test_selections_are_respected():
    dataset = pictures(12, day=list("aabbccaabbcc"), size_=np.arange(12.0))
    chosen = dataset.shuffle(seed=3).select([7, 2, 9, 4, 1])
    whole, part = read_dataset(dataset, task="day"), read_dataset(chosen, task="day")
    rows = read_dataset(chosen, x="size_").x.flatten().long().tolist()
    assert rows != sorted(rows)
    assert torch.equal(part.x, whole.x[rows])
    assert [part.classes[k] for k in part.y] == [whole.classes[whole.y[r]] for r in rows]
    assert [part.tasks[k] for k in part.task] == [whole.tasks[whole.task[r]] for r in rows]


@pytest.mark.parametrize(
    ("feature", "values", "dtype"),
    [
        (datasets.Array2D((2, 3), "uint8"), np.arange(36).reshape(6, 2, 3), torch.uint8),
        (datasets.List(datasets.Value("float64"), 6), np.arange(36).reshape(6, 6), torch.float64),
        (datasets.LargeList(datasets.Value("uint8")), np.arange(12).reshape(6, 2), torch.uint8),
        (datasets.List(datasets.Value("bool")), np.arange(12).reshape(6, 2) % 2, torch.uint8),
    ],
)
def test_columns_of_numbers(feature, values, dtype):
    features = datasets.Features({"v": feature, "y": datasets.Value("string")})
    table = {"v": values.tolist(), "y": list("bababa")}
    data = read_dataset(datasets.Dataset.from_dict(table, features=features), x="v", y="y")
    assert data.x.dtype == dtype
    scale = 255 if "bool" in str(feature) else 1
    assert data.x.tolist() == (scale * values).tolist()


def test_a_dataset_without_images_is_a_table():
    kinds = {"size": datasets.Value("float64"), "skin": LABEL, "hue": datasets.Value("string")}
    features = datasets.Features({**kinds, "day": LABEL, "label": LABEL})
    made = {"size": [1.5, 2.5, 0.5, 1], "skin": [1, 0, 1, 3], "hue": ["red", "blue", "red", "red"]}
    made |= {"day": [0, 3, 0, 3], "label": [3, 0, 3, 1]}
    dataset = datasets.Dataset.from_dict(made, features=features)
    data = read_dataset(dataset, task="day", name="fruit")
    assert data.name == "fruit"
    assert data.columns == ("size", "skin=ant", "skin=bee", "skin=zebra", "hue=blue", "hue=red")
    assert data.x[0].tolist() == [1.5, 1, 0, 0, 0, 1]
    assert (data.classes, data.y.tolist()) == (("zebra", "ant", "bee"), [2, 0, 2, 1])
    assert (data.tasks, data.task.tolist()) == (("zebra", "bee"), [0, 1, 0, 1])
    named = "target: label, 3 classes named as it declares, in its order"
    assert read_dataset(dataset, x="size").notes == (named, "columns passed over: skin, hue, day")


def test_the_format_does_not_matter_but_a_transform_does():
    dataset = pictures()
    plain = read_dataset(dataset)
    for kind in ("torch", "numpy", "arrow"):
        assert torch.equal(read_dataset(dataset.with_format(kind)).x, plain.x)
    grey = dataset.with_transform(
        lambda rows: {"v": [i.convert("L") for i in rows["image"]], "w": rows["label"]}
    )
    assert read_dataset(grey, x="v", y="w").x.shape == (6, 1, 4, 5)


@pytest.mark.parametrize(
    ("columns", "options", "parts"),
    [
        ({}, {"y": "is"}, ["no 'is' for y", "'image', 'label'"]),
        ({}, {"x": "label"}, ["must be different"]),
        ({}, {"x": "label", "y": "image"}, ["must be strings", "at row 0"]),
        ({"other": [picture()] * 6}, {}, ["several image columns", "'image', 'other'"]),
        ({"label": [0, -1, 1, 0, 0, 0]}, {}, ["-1", "missing label", "Column 'label'"]),
        ({"v": [[1], [1, 2], *[[1]] * 4]}, {"x": "v"}, ["item 1", "(2,)", "one shape"]),
        ({"v": [*[[[1, 2]]] * 5, [[1, 2], [3, 4]]]}, {"x": "v"}, ["one shape", "item 5", "(2, 2)"]),
        ({"v": [[1, 2], None] * 3}, {"x": "v"}, ["Item 1", "numbers"]),
        ({"v": [[[1], [1, 2]]] * 6}, {"x": "v"}, ["Item 0", "numbers of one shape"]),
        ({"v": [[True, False], [None, True]] * 3}, {"x": "v"}, ["Item 1", "numbers"]),
        ({"v": [None] * 6}, {"y": "v"}, ["got none at row 0"]),
    ],
)
def test_columns_that_cannot_be_used(columns, options, parts):
    refused(pictures(**columns), *parts, **options)
    refused(pictures().rename_column("label", "is"), "no 'label' for y", "'image', 'is'")
    refused(pictures().to_iterable_dataset(), "map-style", "IterableDataset")


def with_images(images: list):
    dataset = pictures(3).remove_columns("image").add_column("image", images)
    return dataset.cast_column("image", datasets.Image())


def test_images_that_cannot_be_used(tmp_path):
    good = {"bytes": None, "path": str(tmp_path / "good.png")}
    picture().save(good["path"])
    eps = tmp_path / "drawing.eps"
    picture().save(eps)
    assert read_dataset(with_images([good] * 3)).x.shape == (3, 3, 4, 5)
    for bad, part in [
        ({"bytes": b"no image", "path": None}, "cannot identify"),
        ({"bytes": None, "path": "https://localhost/a.png"}, "no file here"),
        ({"bytes": eps.read_bytes(), "path": None}, "cannot identify"),
        (None, "no image"),
    ]:
        refused(with_images([good, bad, good]), "tem 1 of", part)


# ---- the stream of a saved folder ----------------------------------------------------------------


def saved(tmp_path: Path, dataset=None, **options) -> Path:
    (dataset or pictures()).save_to_disk(tmp_path / "my", **options)
    return tmp_path / "my"


def unread(path: Path, *parts: str, **options) -> None:
    conftest.refused(lambda: HuggingFace(path=str(path), **options).read(), *parts)


def test_folders(tmp_path, monkeypatch):
    path = saved(tmp_path, datasets.DatasetDict(train=pictures(24), test=pictures(3)))
    unread(path, "one split", "one in it: test, train")
    stream = HuggingFace(path=str(path / "train"), x="image").build([0])
    assert (stream.name, stream.tasks) == ("train", ("zebra", "ant", "bee"))
    for none in (tmp_path / "none", tmp_path, Path("https://localhost/data")):
        unread(none, "save_to_disk", "correct the path")
    (tmp_path / "a::b").mkdir()
    unread(tmp_path / "a::b", "'::'")
    monkeypatch.setitem(sys.modules, "datasets", None)
    unread(path / "train", "pip install 'dpmcl[huggingface]'")


def test_damaged_folders(tmp_path):
    path = saved(tmp_path)
    state, (shard,) = json.loads((path / "state.json").read_text()), path.glob("*.arrow")
    outside = tmp_path / "outside.arrow"
    outside.write_bytes(shard.read_bytes())
    for name in ("../outside.arrow", str(outside), "none.arrow", ""):
        (path / "state.json").write_text(json.dumps({**state, "_data_files": [{"filename": name}]}))
        unread(path, "files", "not in")
    for text in ("{", '{"_data_files": 3}', "[" * 10_000):
        (path / "state.json").write_text(text)
        unread(path, "cannot be read")
    (path / "state.json").write_text(json.dumps(state))
    shard.write_bytes(outside.read_bytes()[: shard.stat().st_size // 2])
    unread(path)


def test_offsets_that_lead_astray(tmp_path):
    path = saved(tmp_path, datasets.Dataset.from_dict({"v": [[1, 2]] * 6, "label": [0, 1] * 3}))
    (shard,) = path.glob("*.arrow")
    offsets = np.arange(0, 14, 2, dtype=np.int32).tobytes()
    raw = shard.read_bytes()
    assert raw.count(offsets) == 1
    wrong = np.array([0, 2, 4, 6, 8, 10, 1 << 30], np.int32).tobytes()
    shard.write_bytes(raw.replace(offsets, wrong))
    unread(path, "cannot be read", x="v")
