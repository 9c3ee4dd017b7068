"""Labelled data: checked when made, read from arrays without a copy, and refused in one line."""

import numpy as np
import pandas as pd
import pytest
import torch

import dpmcl
from conftest import complaint
from dpmcl.data import pools
from dpmcl.data.field import Field
from dpmcl.data.labelled import Labelled, from_arrays
from dpmcl.data.readers.tables import TableSettings, read_table

NAN, INF = float("nan"), float("inf")


def classified(x=None, **changes) -> Labelled:
    """Three rows of two classes, with changes."""
    x = torch.zeros(3, 2) if x is None else x
    fields = {"y": torch.tensor([0, 1, 0]), "classes": ("a", "b"), **changes}
    return Labelled("zoo", "classification", x, **fields)


# what is checked


INTS = torch.tensor


@pytest.mark.parametrize(
    ("x", "changes", "message"),
    [
        (torch.zeros(3), {}, "got the shape (3,) in 'zoo'; use (rows, 1) for single numbers"),
        (torch.zeros(0, 2), {"y": INTS([])}, "'zoo' has no rows or no inputs; give it some."),
        (None, {"y": INTS([0, 1])}, "'zoo' has 3 rows and 2 targets"),
        (None, {"y": INTS([0, 2, 0]), "classes": ("ant", "bee", "cat")}, "class 'bee' of 'zoo' ha"),
        (None, {"classes": ()}, "'zoo' has 0 names and the number 1"),
    ],
)
def test_what_does_not_fit_together_is_refused(x, changes, message):
    assert message in complaint(classified, x, **changes)


@pytest.mark.parametrize(("bad", "at_once"), [(NAN, 1), (INF, 3), (-INF, 1000)])
def test_values_that_are_not_finite_are_named(bad, at_once, monkeypatch):
    monkeypatch.setattr(pools, "_VALUES_AT_ONCE", at_once)
    x = torch.zeros(3, 2, 4, dtype=torch.float16)
    x[1, 1, 3] = bad
    assert complaint(classified, x) == (
        f"Inputs must be finite; row 1 of 'zoo' has {bad} at (1, 3). Clean or drop such rows."
    )
    table = torch.tensor([[0.0, 1.0], [0.0, bad], [bad, 0.0]])
    expected = f"row 1 of 'zoo' has {bad} in column 'weight'."
    assert expected in complaint(classified, table, fields=(Field("length"), Field("weight")))


# from arrays: inputs


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64"])
def test_bytes_and_floats_keep_their_type_and_share_memory(dtype):
    x = np.zeros((3, 2), dtype=dtype)
    data = from_arrays(x, [0, 1, 0])
    assert str(data.x.dtype) == f"torch.{dtype}"
    x[1, 1] = 7
    assert data.x.tolist() == [[0, 0], [0, 7], [0, 0]]
    tensor = torch.rand(3, 2, requires_grad=True)
    held = from_arrays(tensor, [0, 1, 0]).x
    assert not held.requires_grad
    assert held.data_ptr() == tensor.data_ptr()


def test_bool_inputs_are_0_and_255(log_lines):
    for make in (list, np.array, torch.tensor):
        data = from_arrays(make([[True, False], [False, True]]), [0, 1])
        assert data.x.dtype == torch.uint8
        assert data.x.tolist() == [[255, 0], [0, 255]]
    from_arrays(np.array([[2], [0]], dtype=np.uint8), [0, 1])
    assert not log_lines
    from_arrays(np.array([[1], [0]], dtype=np.uint8), [0, 1])
    assert ["x / 255" in line for line in log_lines] == [True]


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "uint64"])
def test_other_whole_numbers_become_floats_that_hold_them(dtype):
    x = np.array([[3, 100], [0, 127]], dtype=dtype)
    for values in (x, torch.from_numpy(x), x.tolist()):
        data = from_arrays(values, [0, 1])
        assert data.x.dtype == torch.float32
        assert data.x.tolist() == [[3.0, 100.0], [0.0, 127.0]]
    data = from_arrays(np.array([[2**24 + 1], [3]]), [2**53 - 1, 5], kind="regression")
    assert data.x.dtype == data.y.dtype == torch.float64
    assert (data.x.tolist(), data.y.tolist()) == ([[2**24 + 1], [3]], [[2**53 - 1], [5]])


def test_arrays_in_any_layout():
    plain = np.arange(8, dtype=np.float32).reshape(4, 2)
    for x in (plain[:, ::-1], plain[::-1], plain.astype(">f4"), np.asfortranarray(plain)):
        data = from_arrays(x, x[:, 0])
        assert (data.x.tolist(), data.y.tolist()) == (x.tolist(), x[:, :1].tolist())


SHAPE = "must be numbers of one shape a row ("


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([[1, 2], [3]], SHAPE),
        (np.array([[1], [None]], dtype=object), SHAPE),
        ((v for v in [[1], [2]]), "got a generator"),
        (None, "got a NoneType"),
        (torch.tensor([[1j], [2]]), SHAPE + "got type complex"),
        (torch.eye(2).to_sparse(), "dense tensor of numbers, got one of torch.sparse_coo"),
        (np.ma.masked_array(np.eye(2), [[0, 0], [0, 1]]), "row 1 has a masked one"),
        (np.array([[2**60 + 1], [1]]), "got 1152921504606846977 at row 0; subtract an offset"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else type(value).__name__,
)
def test_inputs_that_are_no_array_of_numbers(x, message):
    assert message in complaint(from_arrays, x, [0, 1], name="mine")


# from arrays: targets and tasks


@pytest.mark.parametrize(
    ("y", "kind"),
    [
        (["b", "a", "b"], "classification"),
        (torch.tensor([1, 0, 1]), "classification"),
        ([True, False, True], "classification"),
        ([2**63, 1, 2**63], "classification"),
        ([1, 0, np.float32(1)], "regression"),
        (np.array([[1.0], [0.0], [1.0]], dtype=np.float32), "regression"),
        (torch.tensor([1.0, 0.0, 1.0]), "regression"),
    ],
)
def test_floats_are_regression_and_all_others_classes(y, kind):
    data = from_arrays([torch.zeros(2), torch.zeros(2), torch.zeros(2)], y)
    assert data.kind == kind
    if kind == "classification":
        assert (data.y.dtype, data.y.tolist()) == (torch.int64, [1, 0, 1])
        assert len(data.classes) == 2
    else:
        assert data.y.is_floating_point()
        assert (data.classes, data.y.tolist()) == ((), [[1.0], [0.0], [1.0]])


@pytest.mark.parametrize(
    ("y", "kind", "message"),
    [
        (["a", "b", "c"], "regression", "Targets of 'mine' must be numbers ("),
        (np.zeros((3, 1, 1)), "regression", "of shape (rows,) or (rows, outputs), got (3, 1, 1)"),
        (["a", None, "b"], None, "got none at row 1"),
    ],
)
def test_targets_that_cannot_be_used(y, kind, message):
    assert message in complaint(from_arrays, np.zeros((3, 2)), y, kind=kind, name="mine")


@pytest.mark.parametrize(
    ("y", "settings", "warned"),
    [
        (np.arange(40) % 3 * 1.0, {}, True),
        (np.eye(2)[np.arange(40) % 2], {}, True),
        (np.arange(40) % 3 * 1.0, {"kind": "regression"}, False),
        (np.arange(40) % 3 * 0.5, {}, False),
        (np.arange(40) * 1.0, {}, False),
    ],
)
def test_floats_that_may_be_classes_are_said_to_be_a_regression(y, settings, warned, caplog):
    assert from_arrays(np.ones((40, 2)), y, **settings).kind == "regression"
    sources = 1
    if y.ndim == 1:
        columns = TableSettings(target="y", **settings)
        assert read_table({"x": np.arange(40), "y": y}, columns).kind == "regression"
        sources = 2
    assert sum("they are few whole numbers (0, 1" in line for line in caplog.messages) == (
        sources if warned else 0
    )


@pytest.mark.parametrize(("index", "warned"), [([1, 0], True), ([0, 1], False), ([2, 3], False)])
@pytest.mark.parametrize("read", [from_arrays, dpmcl.Learner(updates=1).learn])
def test_targets_whose_index_has_another_order_are_reported(read, index, warned, caplog):
    read(pd.DataFrame({"a": [0.0, 1.0]}), pd.Series(["no", "yes"], index=index))
    assert any("y.loc[x.index]" in line for line in caplog.messages) == warned


def test_a_chunk_that_is_scored_first_is_reported_once(caplog):
    x, y = pd.DataFrame({"a": [0.0, 1.0]}), pd.Series(["no", "yes"])
    learner = dpmcl.Learner(updates=1).learn(x, y)
    learner.score_then_learn(x, y.set_axis([1, 0]))
    assert sum("y.loc[x.index]" in line for line in caplog.messages) == 1
