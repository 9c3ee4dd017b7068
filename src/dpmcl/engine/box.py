"""Objects whose tensors lie in memory that several processes see.

Everything but tensors is pickled (by cloudpickle: an update is a closure); tensors are copied into
a box once and opened as views of it.
"""

import io
import itertools
import os
import pickle
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from torch import Tensor

_ALIGNED = 64  # bytes, as PyTorch's own tensors: libraries choose their ways by it


@dataclass(frozen=True)
class Packed:
    """What `Box.put` leaves: where the box is, and the object without its tensors.

    memory: a name of the box's memory that is never used again, though its path may be. number:
    of this object among all that this process put anywhere.
    """

    path: str
    size: int
    memory: int
    number: int
    data: bytes

    def open(self) -> Any:
        """The object; its tensors are views of the box, which is kept open for the next one."""
        return _Opener(io.BytesIO(self.data), _mapped(self.path, self.size, self.memory)).load()


class Box:
    """Memory for one object at a time, which grows with what is put in.

    It has no name in the file system (Linux) or a temporary file's, and goes with this object.
    Raises OSError when there is no room for it.
    """

    def __init__(self) -> None:
        self._path, self._size, self._name = "", 0, 0
        self._close: Callable[[], Any] = int

    def put(self, thing: Any) -> Packed:
        """Copies an object in, over what was there."""
        out = io.BytesIO()
        packer = _Packer(out)
        packer.dump(thing)
        if packer.size >= self._size:
            self._grow(packer.size + 1)
        memory = _mapped(self._path, self._size, self._name)
        for place, tensor in packer.tensors:
            _view(memory, place).copy_(tensor)
        return Packed(self._path, self._size, self._name, next(_numbers), out.getvalue())

    def _grow(self, size: int) -> None:
        self._close()
        if hasattr(os, "memfd_create"):
            number = os.memfd_create("dpmcl")
            path = f"/proc/{os.getpid()}/fd/{number}"
            self._close = weakref.finalize(self, os.close, number)
        else:
            number, path = tempfile.mkstemp(prefix="dpmcl-")
            self._close = weakref.finalize(self, _remove, number, path)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(number, 0, size)  # or the lack of room would end us later
        else:
            os.truncate(number, size)
        self._path, self._size, self._name = path, size, next(_numbers)


_numbers = itertools.count(1)


def _remove(number: int, path: str) -> None:
    os.close(number)
    Path(path).unlink(missing_ok=True)


@dataclass(frozen=True)
class _Place:
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles an object and lays its plain CPU tensors out one after another."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[tuple[_Place, Tensor]] = []
        self.size = 0
        self._known: dict[int, _Place] = {}

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is not Tensor or obj.requires_grad:
            return None
        if obj.device.type != "cpu" or obj.layout != torch.strided:
            return None
        if id(obj) not in self._known:
            dense = torch.ops.aten.is_non_overlapping_and_dense.default(obj)
            stride = obj.stride() if dense else torch.empty(obj.shape, device="meta").stride()
            place = _Place(self.size, obj.dtype, tuple(obj.shape), tuple(stride))
            self.tensors.append((place, obj))
            self._known[id(obj)] = place
            bytes_ = obj.numel() * obj.element_size()
            self.size += -(-bytes_ // _ALIGNED) * _ALIGNED
        return self._known[id(obj)]


class _Opener(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, memory: Tensor) -> None:
        super().__init__(file)
        self._memory = memory

    def persistent_load(self, pid: Any) -> Tensor:
        return _view(self._memory, pid)


def _view(memory: Tensor, place: _Place) -> Tensor:
    numel = 1
    for side in place.shape:
        numel *= side
    size = numel * place.dtype.itemsize
    flat = memory[place.offset : place.offset + size].view(place.dtype)
    return flat.as_strided(place.shape, place.stride)


@lru_cache(maxsize=8)
def _mapped(path: str, size: int, _name: int) -> Tensor:
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
