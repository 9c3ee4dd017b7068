"""Tell whether two functions do the same, as far as their parts tell.

A method makes its update anew for each task. Where only the function object is new, what was
traced or captured for one task serves all.
"""

from dataclasses import fields, is_dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any

_PLAIN = (type(None), bool, int, float, complex, str, bytes)


def same(a: Any, b: Any) -> bool:
    """Return True if a may stand for b: one object, or equal code over values of which that holds.

    Values that can be changed in place (lists, modules, tensors) must be one object.

    Args:
        a, b: Functions, or values that they close over.
    """
    return _same(a, b, set())


def _same(a: Any, b: Any, seen: set[tuple[int, int]]) -> bool:
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
    return all(_same(x, y, seen) for x, y in zip(first, second, strict=True))


def _parts(a: Any) -> list[Any] | None:
    """Return what decides what an object does, or None where only the object itself does."""
    if isinstance(a, FunctionType):
        cells = [cell.cell_contents for cell in a.__closure__ or () if _filled(cell)]
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


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
