"""Trees of tensors: mapped, listed, stacked and taken apart."""

from typing import NamedTuple

import pytest
import torch

from dpmcl.core.tree import at, leaves, rebuilt, shapes, stack, tree_map


class Pair(NamedTuple):
    first: object
    second: object


TREE = {"a": (1, {"b": 2}), "c": Pair(3, (4, 5))}


@pytest.mark.parametrize(
    ("function", "trees", "expected"),
    [
        (lambda a: 10 * a, [TREE], {"a": (10, {"b": 20}), "c": Pair(30, (40, 50))}),
        (lambda a, b: a - b, [{"x": 5, "y": 3}, {"y": 1, "x": 2}], {"x": 3, "y": 2}),
        (lambda a, s: a * s["sum"], [{"x": 5}, {"x": {"sum": 2}}], {"x": 10}),
        (lambda a: a, [([1, 2], None)], ([1, 2], None)),
    ],
)
def test_a_mapped_tree_has_the_form_of_the_first(function, trees, expected):
    assert tree_map(function, *trees) == expected
    assert isinstance(tree_map(lambda a: a, TREE)["c"], Pair)
    with pytest.raises(ValueError, match="zip"):
        tree_map(lambda a, b: a + b, (1, 2), (1,))


def test_leaves_come_in_order():
    assert leaves(TREE) == [1, 2, 3, 4, 5] == leaves(rebuilt(TREE, [1, 2, 3, 4, 5]))
    assert (leaves(7), leaves({})) == ([7], [])


def test_stacked_trees_come_apart_again():
    trees = [{"w": torch.full((2, 3), float(i)), "b": (torch.tensor(i),)} for i in range(4)]
    stacked = stack(trees)
    assert shapes(stacked) == [((4, 2, 3), torch.float32), ((4,), torch.int64)]
    for i, tree in enumerate(trees):
        assert torch.equal(at(stacked, i)["w"], tree["w"])
        assert at(stacked, i)["b"][0] == i
