"""Hash tensors and other objects, so that equal ones have the same hash in every process."""

import hashlib
import io
import re
from types import CodeType, FunctionType
from typing import Any

import cloudpickle
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

_BYTES_AT_ONCE = 1 << 26
_PLAIN = (str, bytes, bool, int, float, type(None))


def add(out: Any, tensor: Tensor) -> None:
    """Add the type, shape and bytes of a tensor to a hash.

    The tensor is read slice by slice, since it may be mapped from a file larger than memory.

    Args:
        out: Hash object of hashlib.
        tensor: Tensor on any device.
    """
    if tensor.layout != torch.strided:
        add_object(out, tensor)  # its indices and values are strided
        return
    out.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    rows = tensor.detach() if tensor.dim() else tensor.detach()[None]
    step = max(1, _BYTES_AT_ONCE // max(1, rows[:1].numel() * rows.element_size()))
    for start in range(0, len(rows), step):
        # A view as bytes needs contiguous memory.
        plain = rows[start : start + step].cpu().clone(memory_format=torch.contiguous_format)
        out.update(plain.view(torch.uint8).numpy().data)


def add_object(out: Any, value: Any) -> None:
    """Add an object to a hash: its values, and the code of functions and classes of scripts.

    Args:
        out: Hash object of hashlib.
        value: Any object that cloudpickle can pickle.
    """
    content = io.BytesIO()
    Pickler(content).dump(value)
    out.update(content.getvalue())


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickler that leaves out what differs from process to process, or with an edit elsewhere.

    That is the place of a tensor in memory, the order of a set, the random number that cloudpickle
    gives to a class of a script, and the file and line numbers of its code.
    """

    def persistent_id(self, value: Any) -> str | None:
        """Return a text for a tensor or a set of texts and numbers, and None for other objects.

        Args:
            value: Object to pickle.
        """
        values_exist = isinstance(value, Tensor) and not is_lazy(value)
        if values_exist and value.layout == torch.strided:
            out = hashlib.sha256()
            add(out, value)
            return out.hexdigest()
        if isinstance(value, set | frozenset) and all(type(each) in _PLAIN for each in value):
            return f"{type(value).__name__} {sorted(map(repr, value))}"
        return None

    def reducer_override(self, value: Any) -> Any:
        """Return what is pickled for a code object, a class or a function.

        Args:
            value: Object to pickle.
        """
        if isinstance(value, CodeType):
            plain = value.replace(co_filename="", co_firstlineno=1, co_linetable=b"")
            return self.dispatch_table[CodeType](plain)
        reduced = super().reducer_override(value)
        if not isinstance(reduced, tuple) or len(reduced) < 3:  # pickled by its name
            return reduced
        make, arguments, state, *rest = reduced
        if isinstance(value, FunctionType):
            code, _, *others = arguments  # without the names of the function's file and module
            arguments = (code, {}, *others)
        elif isinstance(value, type):
            arguments = tuple(None if _is_random_id(each) else each for each in arguments)
            state[0].pop("__firstlineno__", None)  # which classes have from Python 3.13 on
        return make, arguments, state, *rest


def _is_random_id(argument: Any) -> bool:
    """Return True for a hexadecimal UUID."""
    return isinstance(argument, str) and re.fullmatch("[0-9a-f]{32}", argument) is not None
