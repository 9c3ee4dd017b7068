"""Tell whether two functions compute the same thing, by comparing their code and closures.

A method creates its update anew for each task. If only the function object is new, the trace or
capture of an earlier task can be used again.
"""

from dataclasses import fields, is_dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def is_same(a: Any, b: Any) -> bool:
    """Return True if `a` and `b` compute the same thing.

    They do if they are one object, or have the same bytecode and their defaults and closures hold
    values that are the same in this sense. Values that can be changed in place (lists, modules,
    tensors) must be one object.

    Args:
        a, b: Functions, or values in their closures.
    """
    return _is_same(a, b, set())


def _is_same(a: Any, b: Any, seen: set[tuple[int, int]]) -> bool:
    if a is b or (id(a), id(b)) in seen:  # a function may close over itself
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, _PLAIN):
        return bool(a == b)
    seen.add((id(a), id(b)))
    first, second = _parts(a), _parts(b)
    if first is None or second is None or len(first) != len(second):
        return False
    return all(_is_same(x, y, seen) for x, y in zip(first, second, strict=True))


def _parts(a: Any) -> list[Any] | None:
    """Return the parts that determine an object's behaviour, or None if only its identity does."""
    if isinstance(a, FunctionType):
        cells = [cell.cell_contents for cell in a.__closure__ or () if _is_filled(cell)]
        keywords = sorted((a.__kwdefaults__ or {}).items())
        return [a.__code__, *(a.__defaults__ or ()), *(v for _, v in keywords), *cells]
    if isinstance(a, MethodType):
        return [a.__func__, a.__self__]
    if isinstance(a, partial):
        return [a.func, *a.args, *(part for pair in sorted(a.keywords.items()) for part in pair)]
    if isinstance(a, tuple):
        return list(a)
    if is_dataclass(a) and getattr(type(a), "__dataclass_params__").frozen:  # noqa: B009
        return [getattr(a, field.name) for field in fields(a)]
    return None


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
