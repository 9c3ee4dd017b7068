"""Labelled data: checked when made, read from arrays without a copy, and refused in one line."""

import numpy as np
import pytest
import torch

import dpmcl.data.labelled
from dpmcl.data.labelled import Labelled, from_arrays
from dpmcl.exceptions import DataError, DpmclError

NAN, INF = float("nan"), float("inf")


def complaint(make, *args, **kwargs) -> str:
    with pytest.raises(DataError) as caught:
        make(*args, **kwargs)
    line = str(caught.value)
    assert "\n" not in line
    assert line.endswith(".")
    return line


def classified(x=None, **changes) -> Labelled:
    """Three rows of two classes, with changes."""
    x = torch.zeros(3, 2) if x is None else x
    given = {"y": torch.tensor([0, 1, 0]), "classes": ("a", "b"), **changes}
    return Labelled("zoo", "classification", x, **given)


def measured(x=None, y=None, **changes) -> Labelled:
    """Three rows of one target, with changes."""
    x = torch.zeros(3, 2) if x is None else x
    return Labelled("rain", "regression", x, torch.zeros(3, 1) if y is None else y, **changes)


# what is checked


def test_good_data_are_held_as_they_are():
    x, y, task = torch.rand(3, 1, 4, 4), torch.tensor([1, 0, 1]), torch.tensor([0, 0, 1])
    found = classified(x, y=y, task=task, tasks=("s", "t"))
    assert found.x is x
    assert found.y is y
    assert found.task is task
    assert found.columns == ()
    assert found.scaled is None


@pytest.mark.parametrize("shape", [(), (3,)])
def test_inputs_need_a_dimension_beside_the_rows(shape):
    line = complaint(classified, torch.zeros(shape))
    assert f"got the shape {shape} in 'zoo'" in line
    assert "use (rows, 1) for single numbers" in line


@pytest.mark.parametrize("shape", [(0, 2), (3, 0), (3, 2, 0)])
def test_no_rows_and_no_inputs_are_refused(shape):
    y = torch.zeros(shape[0], dtype=torch.int64)
    line = complaint(classified, torch.zeros(shape), y=y, classes=("a",))
    assert line == "'zoo' has no rows or no inputs; give it some."


@pytest.mark.parametrize("length", [0, 2, 4])
def test_targets_of_another_length_are_refused(length):
    line = complaint(classified, y=torch.zeros(length, dtype=torch.int64), classes=("a",))
    assert f"'zoo' has 3 rows and {length} targets" in line


@pytest.mark.parametrize("length", [2, 4])
def test_tasks_of_another_length_are_refused(length):
    task = torch.zeros(length, dtype=torch.int64)
    assert f"3 rows and {length} tasks" in complaint(classified, task=task, tasks=("s",))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_inputs_that_are_not_finite_are_named_by_row_and_place(bad, dtype):
    x = torch.zeros(3, 2, 4, dtype=dtype)
    x[1, 1, 3] = bad
    line = complaint(classified, x)
    assert line == (
        f"Inputs must be finite; row 1 of 'zoo' has {bad} at (1, 3). Clean or drop those rows."
    )


def test_of_several_the_first_is_named_and_all_are_counted():
    x = torch.zeros(3, 2)
    x[2, 0], x[1, 1], x[2, 1] = NAN, INF, NAN
    line = complaint(classified, x)
    assert "row 1 of 'zoo' has inf at (1), and 3 values are so in all." in line


def test_inputs_of_a_table_are_named_by_column():
    x = torch.zeros(3, 2)
    x[2, 1] = NAN
    line = complaint(classified, x, columns=("length", "weight"))
    assert "row 2 of 'zoo' has nan in column 'weight'." in line


@pytest.mark.parametrize("at_once", [1, 2, 3, 5, 1000])
def test_a_large_pool_is_read_in_pieces_that_agree(at_once, monkeypatch):
    monkeypatch.setattr(dpmcl.data.labelled, "_VALUES_AT_ONCE", at_once)
    x = torch.zeros(7, 2)
    y = torch.zeros(7, dtype=torch.int64)
    classified(x, y=y, classes=("a",))
    x[4, 0] = x[4, 1] = x[6, 0] = NAN
    line = complaint(classified, x, y=y, classes=("a",))
    assert "row 4 of 'zoo' has nan at (0), and 3 values are so in all." in line


def test_targets_that_are_not_finite_are_named():
    y = torch.zeros(3, 2)
    y[2, 1] = INF
    assert "Targets must be finite; row 2 of 'rain' has inf at (1)." in complaint(measured, y=y)


def test_a_column_of_inputs_does_not_name_a_target():
    y = torch.tensor([[0.0], [NAN], [0.0]])
    line = complaint(measured, y=y, columns=("length", "weight"))
    assert "Targets" in line
    assert "length" not in line


def test_bytes_and_regression_without_classes_pass():
    assert measured(torch.full((3, 2), 255, dtype=torch.uint8)).classes == ()


def test_a_class_without_rows_is_named():
    line = complaint(classified, y=torch.tensor([0, 2, 0]), classes=("ant", "bee", "cat"))
    assert "class 'bee' of 'zoo' has none" in line
    line = complaint(classified, y=torch.tensor([0, 0, 0]), classes=("ant", "bee"))
    assert "class 'bee' of 'zoo' has none" in line


def test_a_task_without_rows_is_named():
    task = torch.tensor([0, 0, 2])
    for make in (classified, measured):
        line = complaint(make, task=task, tasks=("mon", "tue", "wed"))
        assert "Every task needs rows; task 'tue' of '" in line


@pytest.mark.parametrize("classes", [(), ("a",)])
def test_a_class_number_without_a_name_is_refused(classes):
    line = complaint(classified, classes=classes)
    assert f"'zoo' has {len(classes)} names and the number 1" in line


# from arrays: inputs


def test_byte_inputs_stay_bytes_and_share_memory():
    x = np.arange(24, dtype=np.uint8).reshape(3, 2, 2, 2)
    found = from_arrays(x, [0, 1, 0])
    assert found.x.dtype == torch.uint8
    assert found.x.shape == (3, 2, 2, 2)
    x[2, 1, 1, 1] = 200
    assert int(found.x[2, 1, 1, 1]) == 200


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_float_inputs_keep_their_type_and_share_memory(dtype):
    x = np.zeros((3, 2), dtype=dtype)
    found = from_arrays(x, [0, 1, 0])
    assert str(found.x.dtype) == f"torch.{dtype}"
    x[1, 1] = 7
    assert found.x.tolist() == [[0, 0], [0, 7], [0, 0]]


def test_a_tensor_is_held_without_its_gradient():
    x = torch.rand(3, 2, requires_grad=True)
    found = from_arrays(x, [0, 1, 0])
    assert not found.x.requires_grad
    assert found.x.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_bool_inputs_are_0_and_255(make):
    found = from_arrays(make([[True, False], [False, True]]), [0, 1])
    assert found.x.dtype == torch.uint8
    assert found.x.tolist() == [[255, 0], [0, 255]]


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
def test_other_whole_numbers_become_float32(dtype):
    x = np.array([[3, 100], [0, 127]], dtype=dtype)
    for given in (x, torch.from_numpy(x)):
        found = from_arrays(given, [0, 1])
        assert found.x.dtype == torch.float32
        assert found.x.tolist() == [[3.0, 100.0], [0.0, 127.0]]


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        ([[1, 2], [3, 4]], torch.float32),
        ([[1.5, 2], [3, 4]], torch.float64),
        (((1, 2), (3, 4)), torch.float32),
        ([np.array([1, 2], np.uint8), np.array([3, 4], np.uint8)], torch.uint8),
        ([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])], torch.float32),
    ],
)
def test_lists_of_rows(x, dtype):
    found = from_arrays(x, [0, 1])
    assert found.x.dtype == dtype
    assert found.x[1].tolist() == [3, 4]


def test_inputs_mapped_from_a_read_only_file_are_not_copied(tmp_path, recwarn):
    np.save(tmp_path / "x.npy", np.ones((3, 2), dtype=np.uint8))
    x = np.load(tmp_path / "x.npy", mmap_mode="r", allow_pickle=False)
    found = from_arrays(x, [0, 1, 0])
    assert found.x.data_ptr() == x.ctypes.data
    assert [str(w.message) for w in recwarn] == []


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x[:, ::-1],
        lambda x: x[::-1],
        lambda x: x.astype(">f4"),
        lambda x: np.asfortranarray(x),
        lambda x: x[::2],
    ],
    ids=["flipped", "reversed", "big-endian", "fortran", "strided"],
)
def test_arrays_in_any_layout(change):
    x = change(np.arange(8, dtype=np.float32).reshape(4, 2))
    found = from_arrays(x, list(range(len(x))))
    assert found.x.tolist() == x.tolist()


@pytest.mark.parametrize(
    "x",
    [
        [[1, 2], [3]],
        [[1, 2], 3],
        [np.zeros((2, 2)), np.zeros((3, 2))],
        [torch.zeros(2), torch.zeros(3)],
        [["a", "b"], ["c", "d"]],
        np.array([["a"], ["b"]]),
        np.array([[1], [None]], dtype=object),
        "ab",
        None,
        {"a": 1, "b": 2},
        [[None], [1]],
        np.array([["2020-01-01"], ["2020-01-02"]], dtype="datetime64[D]"),
    ],
)
def test_inputs_that_are_no_numbers_of_one_shape_are_refused(x):
    line = complaint(from_arrays, x, [0, 1], name="mine")
    assert line.startswith("Inputs of 'mine' must be numbers of one shape a row (")


@pytest.mark.parametrize("x", [np.array([[1j], [2]]), torch.tensor([[1j], [2]]), [[1j], [2]]])
def test_complex_inputs_are_refused(x):
    line = complaint(from_arrays, x, [0, 1])
    assert "must be real numbers, got torch.complex" in line
    assert "split them in parts" in line


@pytest.mark.parametrize("x", [[1, 2, 3], np.arange(3.0), torch.arange(3)])
def test_inputs_without_a_second_dimension_are_refused(x):
    line = complaint(from_arrays, x, [0, 1, 0])
    assert "got the shape (3,) in 'arrays'; use (rows, 1)" in line


@pytest.mark.parametrize("x", [5, 2.5, np.array(5.0), torch.tensor(5)])
def test_a_number_is_no_set_of_rows(x):
    assert "got the shape ()" in complaint(from_arrays, x, [0])


@pytest.mark.parametrize("x", [[], np.zeros((0, 2)), torch.zeros(0, 3)])
def test_nothing_is_refused(x):
    assert "arrays" in complaint(from_arrays, x, [])


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_missing_inputs_are_named(make):
    line = complaint(from_arrays, make([[0.0, 1.0], [NAN, 2.0]]), [0, 1], name="mine")
    assert "row 1 of 'mine' has nan at (0)" in line


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (torch.eye(2).to_sparse(), "dense tensor of numbers, got one of torch.sparse_coo"),
        (torch.eye(2, device="meta"), "on device 'meta'"),
        (torch.eye(2).to(torch.float8_e4m3fn), "float8"),
        (np.ma.masked_array(np.eye(2), [[0, 0], [0, 1]]), "row 1 has a masked one"),
        ([np.ma.masked_array([1.0, 2.0], [0, 0]), np.ma.masked_array([1.0, 2.0], [0, 1])], "row 1"),
        (np.zeros(2, [("a", "f4")]), "got type [('a', '<f4')]"),
        ((v for v in [[1], [2]]), "got a generator"),
        ({1, 2}, "got a set"),
        (None, "got a NoneType"),
        (object(), "got a object"),
        (np.array([[2**60 + 1], [1]]), "got 1152921504606846977 at row 0; subtract an offset"),
        (np.array([[1], [2**64 - 1]], np.uint64), "at row 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_array_of_numbers_is_refused_in_a_line(x, says):
    line = complaint(from_arrays, x, [0, 1])
    assert says in line
    assert "0x" not in line


@pytest.mark.parametrize("make", [np.array, torch.tensor, list])
def test_whole_numbers_that_float32_rounds_become_float64(make):
    found = from_arrays(make([[2**24 + 1], [3]]), make([2**53 - 1, 5]), kind="regression")
    assert found.x.dtype == found.y.dtype == torch.float64
    assert found.x.tolist() == [[2**24 + 1], [3]]
    assert found.y.tolist() == [[2**53 - 1], [5]]


# from arrays: targets


@pytest.mark.parametrize(
    "y",
    [
        ["b", "a", "b"],
        np.array(["b", "a", "b"]),
        np.array(["b", "a", "b"], dtype=object),
        [1, 0, 1],
        np.array([9, 4, 9], dtype=np.uint8),
        torch.tensor([1, 0, 1]),
        [True, False, True],
        np.array([True, False, True]),
        np.array([[9], [4], [9]]),
        [np.int64(1), 0, 1],
    ],
)
def test_all_but_floats_are_classes(y):
    found = from_arrays(np.zeros((3, 2)), y)
    assert found.kind == "classification"
    assert found.y.dtype == torch.int64
    assert found.y.tolist() == [1, 0, 1]
    assert len(found.classes) == 2


@pytest.mark.parametrize(
    "y",
    [
        [1.0, 2, 3],
        [1, 2, np.float32(3)],
        np.array([1.0, 2.0, 3.0], dtype=np.float32),
        np.array([1.0, 2.0, 3.0], dtype=object),
        torch.tensor([1.0, 2.0, 3.0]),
        [torch.tensor(1.0), torch.tensor(2.0), torch.tensor(3.0)],
    ],
    ids=["list", "mixed list", "array", "objects", "tensor", "list of tensors"],
)
def test_floats_are_regression(y):
    found = from_arrays(np.zeros((3, 2)), y)
    assert found.kind == "regression"
    assert found.classes == ()
    assert found.y.tolist() == [[1.0], [2.0], [3.0]]
    assert found.y.is_floating_point()


def test_regression_targets_keep_their_type_and_memory():
    y = np.array([1.0, 2.0, 3.0])
    found = from_arrays(np.zeros((3, 2)), y)
    assert found.y.dtype == torch.float64
    y[1] = 7
    assert found.y.tolist() == [[1.0], [7.0], [3.0]]


@pytest.mark.parametrize("outputs", [1, 2])
def test_several_targets_a_row(outputs):
    y = np.arange(3.0 * outputs).reshape(3, outputs)
    found = from_arrays(np.zeros((3, 2)), y)
    assert found.kind == "regression"
    assert found.y.tolist() == y.tolist()


@pytest.mark.parametrize("y", [[2, 1, 2], np.array([2, 1, 2], np.uint8), torch.tensor([2, 1, 2])])
def test_whole_numbers_are_amounts_where_it_is_said(y):
    found = from_arrays(np.zeros((3, 2)), y, kind="regression")
    assert found.kind == "regression"
    assert found.y.dtype == torch.float32
    assert found.y.tolist() == [[2.0], [1.0], [2.0]]


def test_whole_floats_are_classes_where_it_is_said():
    found = from_arrays(np.zeros((3, 2)), [2.0, 1.0, 2.0], kind="classification")
    assert found.classes == ("1", "2")
    assert found.y.tolist() == [1, 0, 1]


@pytest.mark.parametrize("kind", ["regresion", "multilabel"])
def test_another_kind_is_refused(kind):
    with pytest.raises(DpmclError, match="kind"):
        from_arrays(np.zeros((3, 2)), [1, 0, 1], kind=kind)


@pytest.mark.parametrize("y", [["a", "b"], [[1.0], [1.0, 2.0]], [None, 1.0]])
def test_targets_that_are_no_numbers_are_refused(y):
    line = complaint(from_arrays, np.zeros((2, 2)), y, kind="regression", name="mine")
    assert line.startswith("Targets of 'mine' must be numbers (")


@pytest.mark.parametrize("y", [np.zeros((2, 1, 1)), np.array([1j, 2]), np.array(1.0)])
def test_targets_of_another_shape_or_type_are_refused(y):
    line = complaint(from_arrays, np.zeros((2, 2)), y, kind="regression")
    assert "must be numbers of shape (rows,) or (rows, outputs), got" in line


def test_a_missing_target_is_named():
    line = complaint(from_arrays, np.zeros((3, 2)), [1.0, NAN, 2.0])
    assert "Targets must be finite; row 1 of 'arrays' has nan" in line


@pytest.mark.parametrize(
    "y", [["a", NAN, "b"], np.array(["a", NAN, "b"], dtype=object), ["a", None, "b"]]
)
def test_a_missing_label_among_strings_is_named(y):
    """A table read elsewhere has NaN where a text is missing."""
    assert "got none at row 1" in complaint(from_arrays, np.zeros((3, 2)), y)


@pytest.mark.parametrize("length", [2, 4])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_labels_of_another_length_are_refused(length, kind):
    line = complaint(from_arrays, np.zeros((3, 2)), list(range(length)), kind=kind)
    assert f"'arrays' has 3 rows and {length} targets" in line


def test_labels_that_are_none_name_themselves():
    line = complaint(from_arrays, np.zeros((3, 2)), [1, "a", 2], name="mine")
    assert line.startswith("Labels of 'mine' must be of one type")
    line = complaint(from_arrays, np.zeros((3, 2)), np.eye(3, dtype=int), name="mine")
    assert line.startswith("Labels of 'mine' must be one label a row")


# from arrays: tasks


@pytest.mark.parametrize(
    ("task", "names"),
    [
        (["mon", "tue", "mon"], ("mon", "tue")),
        (np.array([2, 10, 2]), ("2", "10")),
        (torch.tensor([0, 1, 0]), ("0", "1")),
        ([False, True, False], ("False", "True")),
        (np.array([[5.0], [7.0], [5.0]]), ("5", "7")),
    ],
)
@pytest.mark.parametrize("y", [["a", "b", "a"], [1.0, 2.0, 3.0]])
def test_a_task_for_each_row(task, names, y):
    found = from_arrays(np.zeros((3, 2)), y, task)
    assert found.task.dtype == torch.int64
    assert found.task.tolist() == [0, 1, 0]
    assert found.tasks == names


def test_without_tasks_there_are_none():
    found = from_arrays(np.zeros((3, 2)), [0, 1, 0])
    assert found.task is None
    assert found.tasks == ()


@pytest.mark.parametrize(
    ("task", "line"),
    [
        (
            ["a", None, "b"],
            "Tasks of 'mine' must be strings, whole numbers or true/false, got none",
        ),
        ([1, 2, "b"], "Tasks of 'mine' must be of one type"),
        ([1, 2], "'mine' has 3 rows and 2 tasks"),
        ("abc", "Tasks of 'mine' must be a list of labels"),
    ],
)
def test_tasks_that_are_none_name_themselves(task, line):
    assert line in complaint(from_arrays, np.zeros((3, 2)), [0, 1, 0], task, name="mine")
