"""Labelled data: rows and their targets, before they become tasks."""

import logging
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpmcl.core.model import Kind
from dpmcl.data.field import Field, names_of
from dpmcl.data.labels import number_labels, unwrapped
from dpmcl.data.pools import compact, shared
from dpmcl.data.rounding import float_type
from dpmcl.exceptions import DataError, SpecError, reason, shown

_LOG = logging.getLogger("dpmcl")

_VALUES_AT_ONCE = 1 << 24
_FEW, _LOOKED_AT = 20, 10_000  # different values of targets that may be classes; rows looked at


@dataclass(frozen=True, eq=False)
class Labelled:
    """Labelled data, into which every source is read. Checked when they are made.

    Attributes:
        name: For titles.
        kind: "classification" or "regression".
        x: Inputs (rows, ...) in a compact type, perhaps mapped from a file; uint8 means x / 255.
        y: int64 (rows,) class numbers 0 .. len(classes)-1, or float (rows, outputs).
        classes: The original label of each class number; empty for regression.
        task: int64 (rows,), the task of each row where the data say so, numbers of `tasks`; or
            None.
        tasks: The original names of those tasks.
        fields: The columns of a table that became inputs; empty elsewhere.
        scaled: bool, the shape of one input; which inputs are brought to mean 0 and deviation 1
            (and, for regression, the targets too); None for none. Fitted later, on the first
            task's training rows alone.
        text: Whether the labels are text, whatever is written in them.
        notes: Lines that say what became of the source: how each column is read, which files were
            passed over, where the names of classes come from. Shown by `dpmcl stream`.

    Raises:
        DataError: Lengths differ, there is no row, a class or task has none, or a value is NaN or
            infinite.
    """

    name: str
    kind: Kind
    x: Tensor
    y: Tensor
    classes: tuple[str, ...] = ()
    task: Tensor | None = None
    tasks: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()
    scaled: Tensor | None = None
    notes: tuple[str, ...] = ()
    text: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Return a name for each input of a table; () elsewhere."""
        return names_of(self.fields)

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
    """Check that a kind is "classification", "regression" or None.

    Args:
        kind: Anything.

    Raises:
        SpecError: It is anything else.
    """
    if kind is not None and not (isinstance(kind, str) and kind in get_args(Kind)):
        raise SpecError(f"kind must be {' or '.join(get_args(Kind))}, got {shown(kind)}.")


def from_arrays(
    x: Any, y: Any, task: Any = None, *, name: str = "arrays", kind: Kind | None = None
) -> Labelled:
    """Make labelled data of arrays, tensors or lists.

    Args:
        x: Inputs (rows, ...), uint8, another number type, or bool. uint8 and floats share their
            memory where they can; bool becomes uint8 0 and 255 (values 0 and 1 in a batch), other
            whole numbers float32, or float64 where that rounds them.
        y: Labels (see `number_labels`), or for regression numbers (rows,) or (rows, outputs).
        task: A label a row that says its task, or None.
        name: For titles.
        kind: None for classification where y is strings, whole numbers or true/false, and
            regression where it is floats.

    Returns:
        The labelled data.

    Raises:
        DataError: The data cannot be used.

    >>> from_arrays([[0.5], [0.1]], ["b", "a"]).classes
    ('a', 'b')
    """
    check_kind(kind)
    inputs = inputs_of(x, f"Inputs of '{name}'")
    told, kind = kind, kind or kind_of(y)
    if kind == "regression":
        targets = targets_of(y, f"Targets of '{name}'")
        if told is None:
            say_if_classes(targets)
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


def inputs_of(x: Any, what: str) -> Tensor:
    """Return inputs as a tensor of a pool's type (`from_arrays`).

    Args:
        x: Inputs (rows, ...).
        what: Names them in errors.

    Raises:
        DataError: They are no numbers of one shape a row.
    """
    array = _array(x, what, "numbers of one shape a row")
    if isinstance(x, Tensor) and (x.is_floating_point() or x.dtype == torch.uint8):
        return x.detach()
    return shared(compact(array, what))


def targets_of(y: Any, what: str) -> Tensor:
    """Return targets of regression as floats (rows, outputs).

    Args:
        y: Numbers (rows,) or (rows, outputs).
        what: Names them in errors.

    Raises:
        DataError: They are anything else.
    """
    array = _array(y, what, "numbers")
    if array.ndim not in (1, 2) or 0 in array.shape[1:]:
        raise DataError(
            f"{what} must be numbers of shape (rows,) or (rows, outputs), got {array.shape} of "
            f"{array.dtype}."
        )
    if isinstance(y, Tensor) and y.is_floating_point():
        targets = y.detach()
    elif array.dtype.kind == "f":
        targets = shared(compact(array, what))
    else:
        targets = torch.from_numpy(array.astype(float_type(array, what)))
    return targets[:, None] if targets.dim() == 1 else targets


def _array(values: Any, what: str, rule: str) -> NDArray[Any]:
    """Return values as an array of real numbers, a copy only where needed. rule: for the error."""
    values = unwrapped(values, what)
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O":
            array = np.array(array.tolist())
        if array.dtype.kind not in "biuf":
            kind = f"type {array.dtype}" if array.ndim else f"a {type(values).__name__}"
            raise TypeError(f"got {kind}")
        return array
    except Exception as error:  # NumPy asks any object what it is
        raise DataError(f"{what} must be {rule} ({reason(error)}).") from None


def kind_of(y: Any) -> Kind:
    """Return "regression" for floats, and "classification" for other targets.

    Args:
        y: Targets.
    """
    return "regression" if _is_float(y) else "classification"


def say_if_classes(targets: Tensor) -> None:
    """Log a warning for targets of a regression that may be classes: few whole numbers.

    Args:
        targets: Floats (rows, outputs) whose kind nobody has set.
    """
    few = targets[:_LOOKED_AT].double().unique()
    if len(few) <= _FEW < len(targets) and bool((few == few.round()).all()):
        _LOG.warning(
            "Targets are floats, so this is a regression, but they are few whole numbers (%s). If "
            "they are classes, give them as whole numbers or set kind = 'classification'; kind = "
            "'regression' says that they are not.",
            ", ".join(f"{value:g}" for value in few[:4].tolist()) + ", ..." * (len(few) > 4),
        )


def _is_float(y: Any) -> bool:
    """Return True if all targets are numbers and some are floats."""
    if isinstance(y, Tensor):
        return y.is_floating_point()
    if isinstance(y, np.ndarray) and y.dtype.kind != "O":
        return bool(y.dtype.kind == "f")
    try:
        numbers = np.array(np.asarray(y).tolist()).dtype.kind == "f"  # also of 2**63, beside 1
        return numbers and any(isinstance(v, float | np.floating | Tensor) for v in y)
    except Exception:  # `number_labels` then says what is wrong
        return False


def _check_finite(values: Tensor, what: str, name: str, columns: tuple[str, ...]) -> None:
    """Refuse NaN and infinities, with the first row that has one."""
    if not values.is_floating_point():
        return
    step = max(1, _VALUES_AT_ONCE // max(1, values[0].numel()))  # a mapped pool is read in pieces
    for start in range(0, len(values), step):
        bad = (~values[start : start + step].isfinite()).nonzero()
        if not len(bad):
            continue
        row, *inside = start + int(bad[0, 0]), *bad[0, 1:].tolist()
        where = f"at ({', '.join(map(str, inside))})"
        if columns:
            where = f"in column '{columns[inside[0]]}'"
        raise DataError(
            f"{what} must be finite; row {row} of '{name}' has "
            f"{values[(row, *inside)].item()} {where}. Clean or drop such rows."
        )


def _check_used(numbers: Tensor, names: tuple[str, ...], what: str, name: str) -> None:
    """Refuse numbers without a name, and names without rows."""
    counts = torch.bincount(numbers, minlength=len(names))
    if len(counts) > len(names) or not names:
        raise DataError(
            f"Every {what} number needs a name; '{name}' has {len(names)} names and the number "
            f"{len(counts) - 1}."
        )
    if int(counts.min()) == 0:
        lacking = names[int(counts.argmin())]
        raise DataError(f"Every {what} needs rows; {what} '{lacking}' of '{name}' has none.")
