"""Trees of tensors: mapped, listed, stacked and taken apart."""

from typing import NamedTuple

import pytest
import torch

from dpmcl.core.tree import at, leaves, move, stack, tree_map


class Pair(NamedTuple):
    first: object
    second: object


TREE = {"a": (1, {"b": 2}), "c": Pair(3, (4, 5))}


def test_map_keeps_the_shape_and_the_named_tuples():
    mapped = tree_map(lambda leaf: 10 * leaf, TREE)
    assert mapped == {"a": (10, {"b": 20}), "c": Pair(30, (40, 50))}
    assert isinstance(mapped["c"], Pair)


def test_map_takes_what_stands_at_the_same_place_in_other_trees():
    assert tree_map(lambda a, b: a - b, {"x": 5, "y": 3}, {"y": 1, "x": 2}) == {"x": 3, "y": 2}


def test_map_gives_a_leaf_the_whole_tree_in_its_place():
    slots = {"x": {"sum": 2, "step": 7}}
    assert tree_map(lambda a, s: a * s["sum"] + s["step"], {"x": 5}, slots) == {"x": 17}


def test_map_refuses_tuples_of_different_lengths():
    with pytest.raises(ValueError, match="zip"):
        tree_map(lambda a, b: a + b, (1, 2), (1,))


def test_map_takes_lists_and_none_as_leaves():
    assert tree_map(lambda leaf: leaf, ([1, 2], None)) == ([1, 2], None)


def test_map_leaves_the_tree_itself_alone():
    tree = {"a": 1}
    tree_map(lambda leaf: leaf + 1, tree)
    assert tree == {"a": 1}


def test_leaves_come_in_order():
    assert leaves(TREE) == [1, 2, 3, 4, 5]
    assert leaves(7) == [7]
    assert leaves({}) == []


def test_stacked_trees_come_apart_again():
    trees = [{"w": torch.full((2, 3), float(i)), "b": (torch.tensor(i),)} for i in range(4)]
    stacked = stack(trees)
    assert stacked["w"].shape == (4, 2, 3)
    assert stacked["b"][0].tolist() == [0, 1, 2, 3]
    for i, tree in enumerate(trees):
        one = at(stacked, i)
        assert torch.equal(one["w"], tree["w"])
        assert torch.equal(one["b"][0], tree["b"][0])


def test_move_puts_every_leaf_on_the_device():
    moved = move({"a": torch.ones(2), "b": (torch.ones(1),)}, torch.device("meta"))
    assert {leaf.device.type for leaf in leaves(moved)} == {"meta"}
