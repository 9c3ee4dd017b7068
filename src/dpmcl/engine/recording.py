"""Record the tensor operations of a function as a graph, while they run."""

import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.utils.weak import WeakTensorKeyDictionary

from dpmcl.core.not_public import TorchDispatchMode, pytree

aten: Any = torch.ops.aten


class Layout(NamedTuple):
    """Type and layout of a tensor.

    Attributes:
        memory: Number of the memory that the tensor lies in; views share it.
        offset: First element in this memory.
        is_dense: Whether every element between the first and the last belongs to it, once.
    """

    memory: int
    offset: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    is_dense: bool


class Recording(NamedTuple):
    """A recorded function.

    Attributes:
        graph: Its operations. Placeholders are the inputs; the output is a list.
        constants: Tensors that it closes over, by the name in the graph.
        layouts: Layout of each node whose value is a tensor.
    """

    graph: fx.Graph
    constants: dict[str, Tensor]
    layouts: dict[fx.Node, Layout]


def record(function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor]) -> Recording:
    """Run a function once, and record its operations.

    Args:
        function: Function of tensors; returns tensors.
        inputs: Its arguments.

    Returns:
        The recording, whose graph returns a list of what the function returns.

    Raises:
        ValueError: The function asks for values of tensors, so its operations depend on them.
    """
    recorder = _Recorder(inputs)
    with recorder:
        outputs = function(*inputs)
    recorder.graph.output([recorder.node_of(tensor) for tensor in outputs])
    return Recording(recorder.graph, recorder.constants, recorder.layouts)


class _Recorder(TorchDispatchMode):
    """Adds each operation to a graph as it runs."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.constants: dict[str, Tensor] = {}
        self.layouts: dict[fx.Node, Layout] = {}
        self._nodes = WeakTensorKeyDictionary()  # so that tensors are freed as usual
        self._memories = itertools.count()
        shared: dict[int, int] = {}
        for number, tensor in enumerate(inputs):
            self._add(tensor, self.graph.placeholder(f"input_{number}"), shared)

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is aten.lift_fresh.default:  # of a constant, which nobody may change
            function = aten.lift_fresh_copy.default
        results = function(*args, **(kwargs or {}))
        inputs, shape = pytree.tree_flatten((tuple(args), dict(kwargs or {})))
        shared: dict[int, int] = {}
        for number, value in enumerate(inputs):
            if isinstance(value, Tensor):
                inputs[number] = node = self.node_of(value)
                shared[_storage(value)] = self.layouts[node].memory
        node = self.graph.call_function(function, *pytree.tree_unflatten(inputs, shape))
        if isinstance(results, Tensor):
            self._add(results, node, shared)
        elif isinstance(results, tuple | list):
            for number, result in enumerate(results):
                if isinstance(result, Tensor):
                    item = self.graph.call_function(operator.getitem, (node, number))
                    self._add(result, item, shared)
        elif results is not None:
            raise ValueError(f"it depends on values of tensors ({function})")
        return results

    def node_of(self, tensor: Tensor) -> fx.Node:
        """Return the node of a tensor; one that is neither input nor result is a constant."""
        if tensor not in self._nodes:
            name = f"constant_{len(self.constants)}"
            self.constants[name] = tensor
            self._add(tensor, self.graph.create_node("get_attr", name), {})
        node: fx.Node = self._nodes[tensor]
        return node

    def _add(self, tensor: Tensor, node: fx.Node, shared: dict[int, int]) -> None:
        """Take note of the tensor of a node. `shared` has the numbers of memory that it may use."""
        storage = _storage(tensor)
        if storage not in shared:
            shared[storage] = next(self._memories)
        self._nodes[tensor] = node
        self.layouts[node] = Layout(
            shared[storage],
            int(tensor.storage_offset()),
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
            aten.is_non_overlapping_and_dense.default(tensor),
        )


def _storage(tensor: Tensor) -> int:
    """Return a number that identifies the memory of a tensor while it is in use."""
    return int(tensor.untyped_storage()._cdata)
