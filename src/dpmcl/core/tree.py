"""Trees of tensors: nested dicts and tuples, mapped leaf by leaf.

PyTorch's own tree module has no public name in every version that we support, and its Python form
costs a third of a small network's update.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def tree_map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """`function` applied to the leaves of a tree, and to what stands at the same place in `rest`.

    Anything that is not a dict or a tuple is a leaf. The trees in `rest` may go deeper than the
    first: a leaf's partner may be a whole tree.

    >>> tree_map(lambda a, b: a + b["c"], {"x": 1}, {"x": {"c": 2}})
    {'x': 3}
    """
    if isinstance(tree, dict):
        return {k: tree_map(function, v, *(r[k] for r in rest)) for k, v in tree.items()}
    if isinstance(tree, tuple):
        values = (tree_map(function, *pair) for pair in zip(tree, *rest, strict=True))
        return type(tree)(*values) if hasattr(tree, "_fields") else tuple(values)
    return function(tree, *rest)


def leaves(tree: Any) -> list[Any]:
    """The leaves of a tree, in a fixed order."""
    if isinstance(tree, dict | tuple):
        children = tree.values() if isinstance(tree, dict) else tree
        return [leaf for child in children for leaf in leaves(child)]
    return [tree]


def rebuilt(like: Any, values: Sequence[Any]) -> Any:
    """A tree of the same form as `like`, from its leaves in the order of `leaves`.

    >>> rebuilt({"x": 1, "y": (2, 3)}, [4, 5, 6])
    {'x': 4, 'y': (5, 6)}
    """
    left = iter(values)
    return tree_map(lambda _: next(left), like)


def stack(trees: Sequence[Any]) -> Any:
    """Trees of one replica each, as one tree with a leading replica dimension."""
    return tree_map(lambda *leaf: torch.stack(leaf), trees[0], *trees[1:])


def at(tree: Any, index: int) -> Any:
    """One replica of a stacked tree: leaf[index]."""
    return tree_map(lambda leaf: leaf[index], tree)


def part(tree: Any, first: int, last: int) -> Any:
    """The replicas first .. last - 1 of a stacked tree, as views."""
    return tree_map(lambda leaf: leaf[first:last], tree)


def shapes(tree: Any) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Shape and type of each leaf, in the order of `leaves`."""
    return [(tuple(leaf.shape), leaf.dtype) for leaf in leaves(tree)]


def move(tree: Any, device: torch.device) -> Any:
    """The same tree on a device."""

    def to(leaf: Tensor) -> Tensor:
        return leaf.to(device)

    return tree_map(to, tree)
