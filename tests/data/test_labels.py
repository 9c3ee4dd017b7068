"""Labels: every plain type becomes 0 .. C-1 with its map, and what is no label is named."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import conftest
from dpmcl.data.labels import number_labels

pandas = pytest.importorskip("pandas")
WHAT = "column 'kind' of my.csv"
NAN = float("nan")


def objects(values):
    return np.array(values, dtype=object)


def complaint(labels) -> str:
    line = conftest.complaint(number_labels, labels, WHAT)
    assert line.startswith(WHAT)
    return line


def check(labels, y: list[int], classes: list[str]) -> None:
    numbered = number_labels(labels, WHAT)
    assert numbered.y.dtype == torch.int64
    assert numbered.y.shape == (len(y),)
    assert numbered.y.tolist() == y
    assert numbered.classes == tuple(classes)
    assert all(type(name) is str for name in numbered.classes)


# what may be given


@pytest.mark.parametrize("make", [list, tuple, iter, np.array, torch.tensor, objects])
def test_labels_in_any_container(make):
    check(make([7, -3, 7, 100]), [1, 0, 1, 2], ["-3", "7", "100"])
    check(make([2.0, -1.0, 10.0]), [1, 0, 2], ["-1", "2", "10"])
    check(make([True, False, True]), [1, 0, 1], ["False", "True"])
    if make is not torch.tensor:
        check(make(["b", "a", "é", "B", ""]), [3, 2, 4, 1, 0], ["", "B", "a", "b", "é"])
        check(make([b"b", "é".encode(), b"b"]), [0, 1, 0], ["b", "é"])
        check(make(["10", "9", "-2", "0"]), [3, 2, 0, 1], ["-2", "0", "9", "10"])


@pytest.mark.parametrize(
    ("labels", "y", "classes"),
    [
        (torch.tensor([2.0, -1.0, 10.0], dtype=torch.bfloat16), [1, 0, 2], ["-1", "2", "10"]),
        ([b"a", "a", np.str_("b"), np.bytes_(b"b")], [0, 0, 1, 1], ["a", "b"]),
        ([torch.tensor(4), torch.tensor([1]), np.array([[4]])], [1, 0, 1], ["1", "4"]),
        (pandas.Series(["b", "a"], dtype="category"), [1, 0], ["a", "b"]),
        ([], [], []),
        (["a", "a\0", "a"], [0, 1, 0], ["a", "a\0"]),
        (["10.5", "9", "1e-05", "9.0"], [3, 1, 0, 2], ["1e-05", "9", "9.0", "10.5"]),
    ],
)
def test_labels_of_mixed_origin(labels, y, classes):
    check(labels, y, classes)


@pytest.mark.parametrize("odd", ["09", "+9", "9.", "-0", ""])
def test_text_that_is_no_plainly_written_number_comes_by_code_point(odd):
    texts = ["10", "1", odd]
    check(texts, [sorted(texts).index(text) for text in texts], sorted(texts))


# what is refused


NONE, TOO_LARGE = "got none at row {}; fill it or drop the row.", "at most 2^{} in size"
NO_LABELS = "must be strings, whole numbers or true/false"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", "b", 3], "must be of one type, got strings ('a') and whole numbers (3, row 2)"),
        (["a", "b", None], NONE.format(2)),
        (objects([True, False, torch.tensor(NAN)]), NONE.format(2)),
        (pandas.Series([1, None, 1], dtype="Int64"), NONE.format(1)),
        (pandas.Series([None, None], dtype="datetime64[ns]"), NONE.format(0)),
        (np.array([[0, 1, 0], [1, 0, 0]]), "got the shape (2, 3); flatten them"),
        ([b"\xff", b"\xfe", b"\xff"], NO_LABELS),
        (["a", "\ud800"], r"Unicode text, got '\ud800'"),
        (np.full(2, 0x7FFFFFFF, np.uint32).view("<U1"), "Unicode"),
        (np.ma.masked_array([1, 2, 3], [0, 1, 0]), "row 1 has a masked one"),
        *[(thing, "must be a list of labels") for thing in ("abc", b"abc", 3, None, {"a": 0})],
        ((1 / 0 for _ in "a"), "division by zero"),
        ([1, 2**64], TOO_LARGE.format(63)),
        (torch.tensor([1e19, 2e19]), TOO_LARGE.format(24)),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_list_of_labels(labels, message):
    assert message in complaint(labels)


@pytest.mark.parametrize("make", [list, np.array, torch.tensor, objects, lambda v: map(float, v)])
def test_missing_labels_and_fractions_are_named_with_their_row(make):
    assert NONE.format(2) in complaint(make([1.0, 2.0, NAN]))
    assert "got inf at row 1; convert them" in complaint(make([1.0, float("inf")]))
    line = complaint(make([1.0, 1.5, 2.5]))
    assert "got 1.5 at row 1; convert them to text" in line
    assert "or, where they are targets of regression, set" in line


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
    numbered = number_labels(labels, WHAT)
    assert [numbered.classes[i] for i in numbered.y.tolist()] == [str(label) for label in labels]
    assert set(numbered.classes) == {str(label) for label in labels}
    if kind != "strings":
        assert numbered.classes == tuple(str(label) for label in sorted(set(labels)))
    containers = [np.array(labels), np.array(labels, dtype=object), iter(labels)]
    if kind == "small":
        containers += [[float(v) for v in labels], np.array(labels, dtype=np.float64)]
    for container in containers:
        again = number_labels(container, WHAT)
        assert torch.equal(again.y, numbered.y)
        assert again.classes == numbered.classes


def test_a_class_that_may_be_a_missing_value_is_reported(caplog):
    for labels in (["nan", "a"], ["nano", "a"]):
        number_labels(np.array(labels), "Labels of 'my'")
    assert [line[:32] for line in caplog.messages] == ["Labels of 'my': the class 'nan' "]
