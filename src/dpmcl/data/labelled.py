"""Labelled data: rows and their targets, before anybody has made tasks of them."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from dpmcl.core.model import Kind
from dpmcl.data.labels import number_labels, plain_array, unmasked
from dpmcl.data.rounding import float_type
from dpmcl.exceptions import DataError, SpecError, reason, shown

_VALUES_AT_ONCE = 1 << 24


@dataclass(frozen=True, eq=False)
class Labelled:
    """What every source of data is read into. Checked when it is made.

    name: for titles. kind: "classification" or "regression".
    x: inputs (rows, ...) in their compact type, perhaps mapped from a file; uint8 means x / 255.
    y: int64 (rows,) class numbers 0 .. len(classes)-1, or float (rows, outputs).
    classes: the original label of each class number; empty for regression.
    task: int64 (rows,), each row's task where the data say so, numbers of `tasks`; else None.
    tasks: the original names of those tasks.
    columns: a name for each input of a table, for errors; empty elsewhere.
    scaled: bool, the shape of one input; which inputs are brought to mean 0 and deviation 1 (and,
    for regression, the targets too); None for none. Fitted later, on the first task's training
    rows alone.
    notes: lines that say what became of the source: what each column is read as, which files were
    passed over, where the names of classes come from. Shown by `dpmcl stream`.

    Raises DataError where lengths differ, there is no row, a class or task has none, or a value
    is NaN or infinite.
    """

    name: str
    kind: Kind
    x: Tensor
    y: Tensor
    classes: tuple[str, ...] = ()
    task: Tensor | None = None
    tasks: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    scaled: Tensor | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_kind(self.kind)
        if self.x.dim() < 2:
            raise DataError(
                f"Inputs must have a dimension beside the rows, got the shape "
                f"{tuple(self.x.shape)} in '{self.name}'; use (rows, 1) for single numbers."
            )
        rows = len(self.x)
        if rows == 0 or self.x[0].numel() == 0:
            raise DataError(f"'{self.name}' has no rows or no inputs; give it some.")
        for what, other in (("targets", self.y), ("tasks", self.task)):
            if other is not None and len(other) != rows:
                raise DataError(
                    f"Every row needs one of the {what}; '{self.name}' has {rows} rows and "
                    f"{len(other)} {what}."
                )
        _check_finite(self.x, "Inputs", self.name, self.columns)
        _check_finite(self.y, "Targets", self.name, ())
        if self.kind == "classification":
            _check_used(self.y, self.classes, "class", self.name)
        if self.task is not None:
            _check_used(self.task, self.tasks, "task", self.name)


def check_kind(kind: Any) -> None:
    """Raise SpecError for anything but a kind, or None."""
    if kind is not None and not (isinstance(kind, str) and kind in get_args(Kind)):
        raise SpecError(f"kind must be {' or '.join(get_args(Kind))}, got {shown(kind)}.")


def from_arrays(
    x: Any, y: Any, task: Any = None, *, name: str = "arrays", kind: Kind | None = None
) -> Labelled:
    """Labelled data from arrays, tensors or lists.

    x: (rows, ...), uint8, another number type, or bool. y: labels (see `number_labels`), or for
    regression numbers (rows,) or (rows, outputs). task: a label a row, or None. kind: None for
    classification where y is strings, whole numbers or true/false, and regression for floats.
    Raises DataError for data that cannot be used.

    >>> from_arrays([[0.5], [0.1]], ["b", "a"]).classes
    ('a', 'b')
    """
    check_kind(kind)
    inputs = as_inputs(x, f"Inputs of '{name}'")
    kind = kind or ("regression" if _is_float(y) else "classification")
    if kind == "regression":
        targets = as_targets(y, f"Targets of '{name}'")
        classes: tuple[str, ...] = ()
    else:
        targets, classes = number_labels(y, f"Labels of '{name}'")
    number, tasks = (None, ()) if task is None else number_labels(task, f"Tasks of '{name}'")
    return Labelled(
        name=name,
        kind=kind,
        x=inputs,
        y=targets,
        classes=classes,
        task=number,
        tasks=tasks,
        notes=("classes: named by the labels as they are",) if classes else (),
    )


def as_inputs(x: Any, what: str) -> Tensor:
    """Inputs as a tensor without copying where possible: uint8 and floats as they are.

    bool becomes uint8 0 and 255 (values 0 and 1 in a batch), other whole numbers float32, or
    float64 where that rounds them. Raises DataError for anything else.
    """
    tensor = _tensor(x, what, "numbers of one shape a row")
    if tensor.dtype == torch.bool:
        return tensor.to(torch.uint8) * 255
    if tensor.dtype == torch.uint8 or tensor.is_floating_point():
        return tensor.detach()
    if tensor.is_complex():
        raise DataError(f"{what} must be real numbers, got {tensor.dtype}; split them in parts.")
    return _of_whole(tensor, what)


def as_targets(y: Any, what: str) -> Tensor:
    """Regression targets as float (rows, outputs). Raises DataError for anything but numbers."""
    tensor = _tensor(y, what, "numbers")
    if tensor.is_complex() or tensor.dim() not in (1, 2) or 0 in tensor.shape[1:]:
        raise DataError(
            f"{what} must be numbers of shape (rows,) or (rows, outputs), got "
            f"{tuple(tensor.shape)} of {tensor.dtype}."
        )
    if not tensor.is_floating_point():
        tensor = _of_whole(tensor, what)
    return tensor.detach()[:, None] if tensor.dim() == 1 else tensor.detach()


def _of_whole(tensor: Tensor, what: str) -> Tensor:
    """Whole numbers as floats that hold them exactly."""
    array = plain_array(tensor, what)
    return torch.from_numpy(array.astype(float_type(array, what)))


def _tensor(values: Any, what: str, rule: str) -> Tensor:
    """Values as a tensor. Raises DataError, which says what must be which rule."""
    if isinstance(values, Tensor):
        odd = values.is_nested or values.layout != torch.strided or values.is_quantized
        small = values.is_floating_point() and values.element_size() == 1
        if odd or small or values.is_meta:
            plain_array(values, what)  # which refuses it
        return values
    values = unmasked(values, what)
    try:
        return _shared(values)
    except Exception as error:  # NumPy asks any object what it is
        raise DataError(f"{what} must be {rule} ({reason(error)}).") from None


def _shared(values: Any) -> Tensor:
    """Shares memory with an array, except where PyTorch has no such layout."""
    array = values if isinstance(values, np.ndarray) else np.array(values)
    if array.dtype.kind == "O":
        array = np.array(array.tolist())
    if array.dtype.kind not in "biufc":
        kind = f"type {array.dtype}" if array.ndim else f"a {type(values).__name__}"
        raise TypeError(f"got {kind}")
    if array.dtype == np.longdouble:
        array = array.astype(np.float64)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    with warnings.catch_warnings():  # nobody writes into the pool, so it may be read-only
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.as_tensor(array)


def _is_float(y: Any) -> bool:
    if isinstance(y, Tensor):
        return y.is_floating_point()
    if isinstance(y, np.ndarray) and (y.dtype.kind != "O" or y.ndim == 0):
        return bool(y.dtype.kind == "f")
    try:
        values = list(y) if isinstance(y, Sequence | np.ndarray) or hasattr(y, "to_numpy") else []
    except Exception:  # which `number_labels` then says
        return False
    numbers = [
        v.is_floating_point() if isinstance(v, Tensor) else isinstance(v, float | np.floating)
        for v in values
        if isinstance(v, int | float | np.number | Tensor)
    ]
    return len(numbers) == len(values) and any(numbers)


def _check_finite(values: Tensor, what: str, name: str, columns: tuple[str, ...]) -> None:
    if not values.is_floating_point():
        return
    step = max(1, _VALUES_AT_ONCE // max(1, values[0].numel()))  # a mapped pool is read in pieces
    count, first = 0, None
    for start in range(0, len(values), step):
        bad = ~values[start : start + step].isfinite()
        if bad.any():
            count += int(bad.sum())
            if first is None:
                first = bad.nonzero()[0]
                first[0] += start
    if first is None:
        return
    row, *inside = first.tolist()
    if columns:
        where = f"in column '{columns[inside[0]]}'"
    else:
        where = f"at ({', '.join(str(i) for i in inside)})"
    more = f", and {count} values are so in all" if count > 1 else ""
    raise DataError(
        f"{what} must be finite; row {row} of '{name}' has {values[tuple(first)].item()} {where}"
        f"{more}. Clean or drop those rows."
    )


def _check_used(numbers: Tensor, names: tuple[str, ...], what: str, name: str) -> None:
    counts = torch.bincount(numbers, minlength=len(names))
    if len(counts) > len(names) or not names:
        raise DataError(
            f"Every {what} number needs a name; '{name}' has {len(names)} names and the number "
            f"{len(counts) - 1}."
        )
    if int(counts.min()) == 0:
        lacking = names[int(counts.argmin())]
        raise DataError(f"Every {what} needs rows; {what} '{lacking}' of '{name}' has none.")
