"""Labels: every plain type becomes 0 .. C-1 with its map, and what is no label is named."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmcl.data.labels import number_labels
from dpmcl.exceptions import DataError

WHAT = "column 'kind' of my.csv"
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def complaint(labels) -> str:
    with pytest.raises(DataError) as caught:
        number_labels(labels, WHAT)
    line = str(caught.value)
    assert line.startswith(WHAT)
    assert "\n" not in line
    return line


def check(labels, y: list[int], classes: list[str]) -> None:
    found = number_labels(labels, WHAT)
    assert found.y.dtype == torch.int64
    assert found.y.shape == (len(y),)
    assert found.y.tolist() == y
    assert found.classes == tuple(classes)
    assert all(type(name) is str for name in found.classes)


# what may be given


@pytest.mark.parametrize("make", [list, tuple, iter, np.array, torch.tensor])
def test_whole_numbers_with_gaps_in_any_container(make):
    check(make([7, 3, 7, 100]), [1, 0, 1, 2], ["3", "7", "100"])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_arrays_and_tensors_of_every_integer_type(dtype):
    array = np.array([10, 2, 10, 127], dtype=dtype)
    check(array, [1, 0, 1, 2], ["2", "10", "127"])
    check(torch.from_numpy(array), [1, 0, 1, 2], ["2", "10", "127"])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_ends_of_every_integer_type_keep_their_value(dtype):
    info = np.iinfo(dtype)
    high = min(info.max, 2**63 - 1)
    check(np.array([high, info.min], dtype=dtype), [1, 0], [str(info.min), str(high)])


@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_negative_numbers_come_first(make):
    check(make([0, -1, -20, 5]), [2, 1, 0, 3], ["-20", "-1", "0", "5"])


@pytest.mark.parametrize("make", [list, np.array, torch.tensor, lambda v: np.array(v, object)])
def test_false_comes_before_true(make):
    check(make([True, False, True]), [1, 0, 1], ["False", "True"])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", object])
def test_whole_floats_count_as_whole_numbers(dtype):
    check(np.array([2.0, -1.0, 10.0], dtype=dtype), [1, 0, 2], ["-1", "2", "10"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_tensors_of_whole_floats_count_too(dtype):
    check(torch.tensor([2.0, -1.0, 10.0], dtype=dtype), [1, 0, 2], ["-1", "2", "10"])


def test_a_list_may_mix_whole_floats_and_integers():
    check([2.0, 1, np.float32(2), np.int8(1)], [1, 0, 1, 0], ["1", "2"])


def test_a_tensor_that_requires_a_gradient_is_read():
    check(torch.tensor([1.0, 0.0], requires_grad=True), [1, 0], ["0", "1"])


STRINGS = ["b", "a", "é", "B", ""]


@pytest.mark.parametrize("make", [list, np.array, lambda v: np.array(v, dtype=object)])
def test_strings_come_by_code_point(make):
    check(make(STRINGS), [3, 2, 4, 1, 0], ["", "B", "a", "b", "é"])


def test_numerals_as_strings_are_strings():
    check(["10", "2", "02"], [1, 2, 0], ["02", "10", "2"])


def test_numbers_come_by_value():
    check([10, 2, 9], [2, 0, 1], ["2", "9", "10"])


@pytest.mark.parametrize("make", [list, np.array, lambda v: np.array(v, dtype=object)])
def test_bytes_are_read_as_utf8(make):
    check(make([b"b", "é".encode(), b"b"]), [0, 1, 0], ["b", "é"])


def test_bytes_and_strings_are_of_one_type():
    check([b"a", "a", np.str_("b"), np.bytes_(b"b")], [0, 0, 1, 1], ["a", "b"])


@pytest.mark.parametrize("values", [[4, 1, 4], [True, False, True], [4.0, 1.0, 4.0]])
def test_a_list_of_tensors_of_one_element(values):
    names = ["False", "True"] if values[0] is True else ["1", "4"]
    check([torch.tensor(v) for v in values], [1, 0, 1], names)
    check([torch.tensor([v]) for v in values], [1, 0, 1], names)
    check([np.array([v]) for v in values], [1, 0, 1], names)


def test_numpy_scalars_and_pythons_numbers_mix():
    check([np.int64(5), 3, np.uint8(5), np.int16(-2)], [2, 1, 2, 0], ["-2", "3", "5"])
    check([np.bool_(True), False], [1, 0], ["False", "True"])


@pytest.mark.parametrize(
    "column",
    [
        np.array([[3], [1]]),
        torch.tensor([[3], [1]]),
        np.array([["3"], ["1"]]),
        np.array([["3"], ["1"]], dtype=object),
        np.array([[b"3"], [b"1"]]),
    ],
    ids=["int", "tensor", "str", "object", "bytes"],
)
def test_a_column_of_labels_is_one_label_a_row(column):
    check(column, [1, 0], ["1", "3"])


def test_pandas_columns():
    pandas = pytest.importorskip("pandas")
    check(pandas.Series(["b", "a"], index=[5, 2]), [1, 0], ["a", "b"])
    check(pandas.Series([2, 1], index=[5, 2]), [1, 0], ["1", "2"])
    check(pandas.Series(["b", "a"], dtype="category"), [1, 0], ["a", "b"])


def test_one_class_alone_and_no_labels_at_all():
    check(["x", "x"], [0, 0], ["x"])
    check([], [], [])


def test_what_was_given_is_left_alone():
    array = np.array([7, 3, 7])
    labels = number_labels(array, WHAT)
    labels.y[:] = 9
    assert array.tolist() == [7, 3, 7]


# what is refused


@pytest.mark.parametrize(
    ("labels", "first", "then", "row"),
    [
        (["a", "b", 3], "strings ('a')", "whole numbers (3", 2),
        ([1, "b"], "whole numbers (1)", "strings ('b'", 1),
        ([1, 0, 1, True], "whole numbers (1)", "true/false (True", 3),
        ([False, 0], "true/false (False)", "whole numbers (0", 1),
        ([np.int64(2), np.bool_(True)], "whole numbers (2)", "true/false (True", 1),
        (np.array([1, "b"], dtype=object), "whole numbers (1)", "strings ('b'", 1),
        ([torch.tensor(1), torch.tensor(True)], "whole numbers (1)", "true/false (True", 1),
    ],
)
def test_mixed_types_are_refused_with_both_and_the_row(labels, first, then, row):
    line = complaint(labels)
    assert f"must be of one type, got {first} and {then}, row {row})" in line
    assert line.endswith("convert them to one.")


NAN = float("nan")


@pytest.mark.parametrize(
    "labels",
    [
        ["a", "b", None],
        [1, 2, None],
        [1.0, 2.0, NAN],
        ["a", "b", NAN],
        [True, False, None],
        [1, 2, np.float32("nan")],
        np.array([1.0, 2.0, NAN]),
        np.array([1.0, 2.0, NAN], dtype=np.float16),
        np.array(["a", "b", None], dtype=object),
        torch.tensor([1.0, 2.0, NAN]),
        [torch.tensor(1.0), torch.tensor(2.0), torch.tensor(NAN)],
    ],
)
def test_a_missing_label_is_named_with_its_row(labels):
    assert "got none at row 2; fill it or drop the row." in complaint(labels)


@pytest.mark.parametrize(
    "make", [list, np.array, torch.tensor, lambda v: np.array(v, object), lambda v: map(float, v)]
)
def test_a_fraction_is_no_label_and_regression_is_named(make):
    line = complaint(make([1.0, 1.5, 2.5]))
    assert (
        "got 1.5 at row 1; convert them, or, where they are targets of regression, set kind" in line
    )


@pytest.mark.parametrize("bad", [float("inf"), float("-inf")])
@pytest.mark.parametrize("make", [list, np.array, torch.tensor])
def test_infinity_is_no_label(make, bad):
    assert f"got {bad} at row 1" in complaint(make([1.0, bad]))


@pytest.mark.parametrize("make", [np.array, torch.tensor])
@pytest.mark.parametrize("rows", [[[0, 1, 0], [1, 0, 0]], [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]])
def test_one_hot_rows_are_refused_with_the_way_out(make, rows):
    line = complaint(make(rows))
    assert "must be one label a row, got the shape (2, 3)" in line
    assert "argmax" in line


@pytest.mark.parametrize(
    "labels",
    [
        [[0, 1], [1, 0]],
        [torch.eye(2)[0], torch.eye(2)[1]],
        [np.eye(30), np.eye(30)],
        np.array([["a", "b"], ["c", "d"]], dtype=object),
        [(0, 1), (1, 0)],
        [{"label": 3}],
        [object()],
    ],
    ids=["lists", "tensors", "matrices", "objects", "tuples", "dicts", "thing"],
)
def test_several_values_a_row_are_refused_in_one_short_line(labels):
    line = complaint(labels)
    assert "must be" in line
    assert len(line) < 400


@pytest.mark.parametrize(
    "labels",
    ["abc", b"abc", 3, 2.5, None, True, np.int64(3), np.array("abc", dtype=object), object()],
)
def test_what_is_no_list_is_refused(labels):
    assert "must be a list of labels" in complaint(labels)


@pytest.mark.parametrize("labels", [np.array(3), torch.tensor(3), np.array("abc")])
def test_a_single_number_in_an_array_is_refused(labels):
    assert "one label a row, got the shape ()" in complaint(labels)


@pytest.mark.parametrize("labels", [{"a": 0, "b": 1}, {"b", "a"}, frozenset("ab")])
def test_what_has_no_rows_in_order_is_refused(labels):
    """A dict's keys and a set's members would number rows that nobody gave."""
    assert "must be" in complaint(labels)


BIG = [
    np.array([1, 2**63], dtype=np.uint64),
    [1, 2**63],
    [-(2**63) - 1, 1],
    [np.uint64(2**63), 1],
    np.array([1, 2**70], dtype=object),
    torch.from_numpy(np.array([1, 2**63], dtype=np.uint64)),
]


@pytest.mark.parametrize("labels", BIG)
def test_numbers_that_no_int64_holds_are_refused(labels):
    line = complaint(labels)
    assert "must be below 2^63" in line
    assert line.endswith("give them as strings.")


@pytest.mark.parametrize(
    ("labels", "bits"),
    [
        ([1e19, 2e19], 53),
        (np.array([1e19, 2e19]), 53),
        (torch.tensor([1e19, 2e19]), 24),
        (np.array([2.0**53 + 2, 1.0]), 53),
        (np.array([2.0**24 + 2, 1.0], np.float32), 24),
    ],
    ids=["list", "array", "tensor", "limit", "limit of float32"],
)
def test_floats_that_cannot_tell_labels_apart_are_refused(labels, bits):
    assert f"must be below 2^{bits}" in complaint(labels)


@pytest.mark.parametrize(
    "labels",
    [
        np.array([1j, 2j]),
        torch.tensor([1j, 2j]),
        np.array(["2020-01-01", "2020-01-02"], dtype="datetime64[D]"),
        np.array([(1, 2)], dtype=[("a", int), ("b", int)]),
        [1j, 2j],
        [np.datetime64("2020-01-01")],
    ],
    ids=["complex array", "complex tensor", "dates", "records", "complex list", "date list"],
)
def test_other_types_are_refused(labels):
    assert "must be strings, whole numbers or true/false" in complaint(labels)


def test_bytes_that_are_no_text_are_not_taken_for_one_another():
    try:
        found = number_labels([b"\xff", b"\xfe", b"\xff"], WHAT)
    except DataError:
        return
    assert found.y[0] == found.y[2] != found.y[1]


def test_strings_that_differ_in_a_final_nul_differ():
    assert number_labels(["a", "a\0", "a"], WHAT).y.tolist() == [0, 1, 0]


# properties

KINDS = {
    "integers": st.integers(-(2**63), 2**63 - 1),
    "small": st.integers(-3, 12),
    "strings": st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4),
    "true/false": st.booleans(),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_class_is_its_labels_text_and_classes_are_in_order(kind, data):
    labels = data.draw(st.lists(KINDS[kind], min_size=1, max_size=30))
    found = number_labels(labels, WHAT)
    assert [found.classes[i] for i in found.y.tolist()] == [str(label) for label in labels]
    assert found.classes == tuple(str(label) for label in sorted(set(labels)))
    for other in (np.array(labels), np.array(labels, dtype=object), iter(labels)):
        again = number_labels(other, WHAT)
        assert torch.equal(again.y, found.y)
        assert again.classes == found.classes


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-(2**53), 2**53), min_size=1, max_size=20))
def test_whole_floats_are_numbered_as_the_integers_they_are(labels):
    found = number_labels(labels, WHAT)
    for floats in ([float(v) for v in labels], np.array(labels, dtype=np.float64)):
        again = number_labels(floats, WHAT)
        assert torch.equal(again.y, found.y)
        assert again.classes == found.classes


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1), (1, 1, 3)])
def test_a_row_of_labels_is_to_be_flattened(shape):
    line = complaint(np.array(["a", "b", "a"]).reshape(shape))
    assert f"got the shape {shape}; flatten them, as by ravel()." in line


@pytest.mark.parametrize("dtype", ["Int64", "boolean", "string", "category", "datetime64[ns]"])
def test_pandas_missing_values_are_named(dtype):
    pandas = pytest.importorskip("pandas")
    values = pandas.Series([1, None, 1]) if dtype == "Int64" else pandas.Series([None, None, None])
    row = 1 if dtype == "Int64" else 0
    assert f"got none at row {row}; fill it" in complaint(values.astype(dtype))


@pytest.mark.parametrize(
    "labels",
    [
        np.ma.masked_array([1, 2, 3], [0, 1, 0]),
        np.ma.masked_array(["a", "b", "c"], [0, 1, 0]),
        [1, np.ma.masked, 3],
    ],
)
def test_a_masked_label_is_missing(labels):
    assert "row 1 has a masked one" in complaint(labels)


@pytest.mark.parametrize("labels", [object(), [object()], [lambda: 0], [1, object()]])
def test_no_error_shows_an_address(labels):
    assert "0x" not in complaint(labels)


def test_text_that_no_file_can_hold_is_refused():
    assert r"got '\ud800'" in complaint(["a", "\ud800"])


def test_whole_numbers_as_text_come_by_value():
    check(["10", "9", "-2", "0"], [3, 2, 0, 1], ["-2", "0", "9", "10"])
    check(np.array(["10", "9"]), [1, 0], ["9", "10"])
    for odd in ("09", "+9", "9.0", " 9", "-0", ""):
        check(["10", "1", odd], *([[sorted(["10", "1", odd]).index(v) for v in ("10", "1", odd)],
              sorted(["10", "1", odd])]))  # fmt: skip
