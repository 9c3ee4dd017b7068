"""Trace an update to the list of its tensor operations, simplify the list, and run it directly.

On a CPU, half of the time of a small network's update is overhead: torch.func's layers, and the
allocation of memory. Tracing records the operations once. Views that change nothing are then left
out, and operations whose input is not needed any more write their result into it. The results are
the same to the last bit, since the same operations run in the same order.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from dpmcl.core.not_public import pytree
from dpmcl.engine.recording import Layout, record

aten: Any = torch.ops.aten

# Views that can be identical to their input.
_VIEWS = {
    *(aten.view, aten.expand, aten._unsafe_view, aten.alias, aten.detach),
    *(aten.transpose, aten.permute, aten.squeeze, aten.unsqueeze),
}
# Element-wise operations and their in-place forms, which write into the first input.
_IN_PLACE = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.div.Tensor: aten.div_.Tensor,
    aten.addcmul.default: aten.addcmul_.default,
    aten.addcdiv.default: aten.addcdiv_.default,
    aten.lerp.Scalar: aten.lerp_.Scalar,
    aten.sqrt.default: aten.sqrt_.default,
    aten.neg.default: aten.neg_.default,
    aten.relu.default: aten.relu_.default,
    aten.sigmoid.default: aten.sigmoid_.default,
    aten.tanh.default: aten.tanh_.default,
    aten.clamp_min.default: aten.clamp_min_.default,
    aten.bitwise_and.Scalar: aten.bitwise_and_.Scalar,
    aten.bitwise_xor.Tensor: aten.bitwise_xor_.Tensor,
    aten.__rshift__.Scalar: aten.__irshift__.Scalar,
}
# Operations that commute to the last bit, so that they can also write into the second input.
_COMMUTATIVE = frozenset((aten.add.Tensor, aten.mul.Tensor, aten.bitwise_xor.Tensor))


def trace(function: Callable[..., Any], *trees: Any) -> Callable[..., Any]:
    """Trace a function, and return one that runs its tensor operations directly.

    The traced function overwrites the tensors of its first argument, and its result may share
    memory with them; the other arguments stay as they are.

    Args:
        function: Function of trees of tensors.
        trees: Example arguments; later ones must have the same shapes and types.

    Raises:
        ValueError: The operations depend on the values of tensors.
    """
    flat, shape = pytree.tree_flatten(trees)
    donated = len(pytree.tree_leaves(trees[0]))
    out_shape: Any = None

    def on_leaves(*inputs: Tensor) -> list[Tensor]:
        nonlocal out_shape
        out, out_shape = pytree.tree_flatten(function(*pytree.tree_unflatten(list(inputs), shape)))
        return out

    with torch.no_grad():
        graph, constants, layouts = record(on_leaves, flat)
    _drop_views(graph, layouts)
    _reuse_memory(graph, layouts, donated)
    module = fx.GraphModule(constants, graph)

    @torch.no_grad()
    def run(*arguments: Any) -> Any:
        return pytree.tree_unflatten(module(*pytree.tree_leaves(arguments)), out_shape)

    return run


def _drop_views(graph: fx.Graph, layouts: dict[fx.Node, Layout]) -> None:
    """Leave out views that are identical to their input or to an earlier tensor that it views."""
    for node in list(graph.nodes):
        if not _is_view(node):
            continue
        layout, source = layouts[node], node.args[0]
        while layouts[source] != layout and _is_view(source):
            source = source.args[0]
        if layouts[source] == layout:
            node.replace_all_uses_with(source)
    graph.eliminate_dead_code()


def _is_view(node: fx.Node) -> bool:
    return getattr(node.target, "overloadpacket", None) in _VIEWS


def _reuse_memory(graph: fx.Graph, layouts: dict[fx.Node, Layout], donated: int) -> None:
    """Let operations write their result into an input that is not needed any more.

    Nodes that share memory form a group; groups are joined as operations write in place.
    donated: number of the graph's inputs, counted from the first, that may be overwritten.
    """
    nodes = list(graph.nodes)
    position = {node: index for index, node in enumerate(nodes)}
    inputs = [node for node in nodes if node.op == "placeholder"]
    group = {node: layouts[node].memory for node in nodes if node in layouts}
    fixed = {group[node] for node in inputs[donated:]}
    fixed |= {group[node] for node in nodes if node.op == "get_attr"}
    end: dict[int, int] = {}
    for node, key in group.items():
        last = max((position[user] for user in node.users), default=position[node])
        end[key] = max(end.get(key, -1), last)
    _separate_outputs(graph, group, fixed)
    for node in nodes:
        target = _IN_PLACE.get(node.target)
        if target is None:
            continue
        swappable = node.target in _COMMUTATIVE and len(node.args) == 2 and not node.kwargs
        choices = node.args[:2] if swappable else node.args[:1]
        for chosen in choices:
            key = group.get(chosen, -1) if isinstance(chosen, fx.Node) else -1
            other_groups = [group[other] for other in node.all_input_nodes if other is not chosen]
            if (
                key == -1
                or key in fixed
                or end[key] > position[node]
                or key in other_groups
                or list(node.args).count(chosen) > 1
                or not _fits(layouts[node], layouts[chosen])
            ):
                continue
            rest = [arg for arg in node.args[:2] if arg is not chosen]
            node.args = (chosen, *rest, *node.args[2:])
            node.target = target
            joined = group[node]
            for member, label in group.items():
                if label == joined:
                    group[member] = key
            end[key] = max(end[key], end[joined])
            break


def _fits(result: Layout, memory: Layout) -> bool:
    """Return True if a result can be written where another tensor lies."""
    same_type = result.dtype == memory.dtype and result.shape == memory.shape
    return same_type and result.stride == memory.stride and memory.is_dense


def _separate_outputs(graph: fx.Graph, group: dict[fx.Node, int], fixed: set[int]) -> None:
    """Copy results that share memory with one another or with tensors that must not change.

    The caller may overwrite results.
    """
    (output,) = (node for node in graph.nodes if node.op == "output")
    taken: set[int] = set(fixed)
    results = []
    for node in output.args[0]:
        key = group[node]
        if key in taken:
            with graph.inserting_before(output):
                node = graph.call_function(aten.clone.default, (node,))
        taken.add(key)
        results.append(node)
    output.args = (results,)
