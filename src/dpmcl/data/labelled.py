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
from dpmcl.data.labels import number_labels
from dpmcl.data.plain_arrays import is_pandas, unwrapped
from dpmcl.data.pools import compact, pieces, shared_tensor
from dpmcl.data.rounding import float_type
from dpmcl.exceptions import DataError, SpecError, reason, shown

_LOG = logging.getLogger("dpmcl")

_FEW = 20  # largest number of different values of float targets that may be classes
_ROWS_CHECKED = 10_000  # rows in which those values are counted
_VALUES_CHECKED = 1_000  # of a row's last dimension


@dataclass(frozen=True, eq=False)
class Labelled:
    """Inputs and targets, the form into which every source is read. Validated on creation.

    Attributes:
        name: Name for titles.
        kind: "classification" or "regression".
        x: Inputs (rows, ...) in a compact type, perhaps memory-mapped; uint8 values stand for
            x / 255.
        y: Class numbers 0 .. len(classes)-1, int64 (rows,), or targets, float (rows, outputs).
        classes: Original label of each class number; empty for regression.
        task: Task number of each row, int64 (rows,); None if the data have no tasks.
        tasks: Original name of each task number.
        fields: Columns of a table that became inputs; empty for other sources.
        scaled: Mask of the inputs to scale to mean 0 and standard deviation 1, bool, the shape of
            one input; for regression, the targets are then scaled too. None to scale nothing. The
            scale is fitted later, on the first task's training rows only.
        text: Whether the labels are text, even if that text reads as numbers.
        notes: Lines about how the source was read: the type of each column, the files that were
            skipped, the origin of the class names. `dpmcl stream` shows them.

    Raises:
        DataError: Lengths differ, there is no row, a class or task has no rows, or a value is NaN
            or infinite.
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
        """Name of each input if the source is a table, else ()."""
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
        for what, values in (("targets", self.y), ("tasks", self.task)):
            if values is not None and len(values) != rows:
                raise DataError(
                    f"Every row needs one of the {what}; '{self.name}' has {rows} rows and "
                    f"{len(values)} {what}."
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
        kind: Value to check.

    Raises:
        SpecError: It is anything else.
    """
    if kind is not None and not (isinstance(kind, str) and kind in get_args(Kind)):
        raise SpecError(f"kind must be {' or '.join(get_args(Kind))}, got {shown(kind)}.")


def from_arrays(
    x: Any, y: Any, task: Any = None, *, name: str = "arrays", kind: Kind | None = None
) -> Labelled:
    """Make labelled data from arrays, tensors or lists.

    Args:
        x: Inputs (rows, ...), numbers or bool. uint8 and floats share the memory of `x` if
            possible. bool becomes uint8 0 and 255 (0 and 1 in a batch). Other integers become
            float32, or float64 if float32 would round them.
        y: Labels (see `number_labels`), or for regression numbers (rows,) or (rows, outputs).
        task: Task label of each row, or None.
        name: Name for titles.
        kind: "classification" or "regression". None for regression if y is floats, and for
            classification if it is strings, whole numbers or true/false.

    Returns:
        The labelled data.

    Raises:
        DataError: The data cannot be used.

    >>> from_arrays([[0.5], [0.1]], ["b", "a"]).classes
    ('a', 'b')
    """
    check_kind(kind)
    warn_if_reordered(x, y)
    inputs = inputs_of(x, f"Inputs of '{name}'")
    warn_if_flags(inputs)
    requested, kind = kind, kind or kind_of(y)
    if kind == "regression":
        targets = targets_of(y, f"Targets of '{name}'")
        if requested is None:
            warn_if_classes(targets)
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


def inputs_of(x: Any, what: str, *, images: bool = True) -> Tensor:
    """Return inputs as a tensor of a compact type, converted as in `from_arrays`.

    Args:
        x: Inputs (rows, ...).
        what: Name of the inputs in errors.
        images: Whether true/false becomes uint8 0 and 255; otherwise it becomes float32 0 and 1.

    Raises:
        DataError: The inputs are not numbers, or the shapes of rows differ.
    """
    array = numbers_of(x, what, "numbers of one shape a row")
    if isinstance(x, Tensor) and (x.is_floating_point() or x.dtype == torch.uint8):
        return x.detach()
    if array.dtype.kind == "b" and not images:
        array = array.astype(np.float32)
    return shared_tensor(compact(array, what))


def warn_if_reordered(x: Any, y: Any) -> None:
    """Log a warning if inputs and targets of pandas have the same index in different orders.

    Args:
        x: Inputs.
        y: Targets, which belong to the inputs by position.
    """
    if not (is_pandas(x) and is_pandas(y)) or x.index.equals(y.index):
        return
    if set(x.index) == set(y.index):
        _LOG.warning(
            "Inputs and targets are joined by position, and their indexes have different orders. "
            "If they belong together by index, give y.loc[x.index]."
        )


def warn_if_flags(inputs: Tensor) -> None:
    """Log a warning if inputs are uint8, which stand for x / 255, and may be 0 and 1 instead.

    Args:
        inputs: Inputs (rows, ...).
    """
    if inputs.dtype != torch.uint8 or inputs.ndim < 2:
        return
    first = inputs[:_ROWS_CHECKED, ..., :_VALUES_CHECKED]  # the others may be in a file
    if first.numel() and int(first.max()) == 1:
        _LOG.warning(
            "Inputs are uint8 and at most 1, and uint8 stands for x / 255, as in images. If they "
            "are 0 and 1, give them as true/false or floats."
        )


def targets_of(y: Any, what: str) -> Tensor:
    """Return targets of regression as floats (rows, outputs).

    Args:
        y: Numbers (rows,) or (rows, outputs).
        what: Name of the targets in errors.

    Raises:
        DataError: They are anything else.
    """
    array = numbers_of(y, what, "numbers")
    if array.ndim not in (1, 2) or 0 in array.shape[1:]:
        raise DataError(
            f"{what} must be numbers of shape (rows,) or (rows, outputs), got {array.shape} of "
            f"{array.dtype}."
        )
    if isinstance(y, Tensor) and y.is_floating_point():
        targets = y.detach()
    elif array.dtype.kind == "f":
        targets = shared_tensor(compact(array, what))
    else:
        targets = torch.from_numpy(array.astype(float_type(array, what)))
    return targets[:, None] if targets.dim() == 1 else targets


def numbers_of(values: Any, what: str, rule: str) -> NDArray[Any]:
    """Return values as an array of real numbers, copied only if necessary.

    Args:
        values: Numbers in any form.
        what: Name of the values in errors.
        rule: What the values must be, for errors.

    Raises:
        DataError: They are anything else.
    """
    values = unwrapped(values, what)
    try:
        array = np.asarray(values)
        if array.dtype.kind == "O":
            array = np.array(array.tolist())
        if array.dtype.kind not in "biuf":
            kind = f"type {array.dtype}" if array.ndim else f"a {type(values).__name__}"
            raise TypeError(f"got {kind}")
        return array
    except Exception as error:  # NumPy calls methods of the user's objects
        raise DataError(f"{what} must be {rule} ({reason(error)}); convert them.") from None


def kind_of(y: Any) -> Kind:
    """Return "regression" if targets are floats, else "classification".

    Args:
        y: Targets.
    """
    return "regression" if _is_float(y) else "classification"


def warn_if_classes(targets: Tensor) -> None:
    """Log a warning if targets of a regression may be classes, being few different whole numbers.

    Args:
        targets: Floats (rows, outputs), whose kind the user has not set.
    """
    distinct = targets[:_ROWS_CHECKED].double().unique()
    if len(distinct) <= _FEW < len(targets) and bool((distinct == distinct.round()).all()):
        _LOG.warning(
            "Targets are floats, so this is a regression, but they are few whole numbers (%s). If "
            "they are classes, give them as whole numbers or set kind = 'classification'; kind = "
            "'regression' says that they are not.",
            ", ".join(f"{value:g}" for value in distinct[:4].tolist())
            + ", ..." * (len(distinct) > 4),
        )


def _is_float(y: Any) -> bool:
    """Return True if all targets are numbers and some are floats."""
    if isinstance(y, Tensor):
        return y.is_floating_point()
    if isinstance(y, np.ndarray) and y.dtype.kind != "O":
        return bool(y.dtype.kind == "f")
    try:
        # NumPy makes floats of 2**63 beside 1, too.
        numbers = np.array(np.asarray(y).tolist()).dtype.kind == "f"
        return numbers and any(isinstance(v, float | np.floating | Tensor) for v in y)
    except Exception:  # `number_labels` then raises an error that names the problem
        return False


def _check_finite(values: Tensor, what: str, name: str, columns: tuple[str, ...]) -> None:
    """Raise DataError for the first row with a NaN or an infinity."""
    if not values.is_floating_point():
        return
    start = 0
    for rows in pieces(values):
        invalid = (~rows.isfinite()).nonzero()
        if not len(invalid):
            start += len(rows)
            continue
        row, *inside = start + int(invalid[0, 0]), *invalid[0, 1:].tolist()
        where = f"at ({', '.join(map(str, inside))})"
        if columns:
            where = f"in column '{columns[inside[0]]}'"
        raise DataError(
            f"{what} must be finite; row {row} of '{name}' has "
            f"{values[(row, *inside)].item()} {where}. Clean or drop such rows."
        )


def _check_used(numbers: Tensor, names: tuple[str, ...], what: str, name: str) -> None:
    """Raise DataError if a number has no name, or a name has no rows."""
    counts = torch.bincount(numbers, minlength=len(names))
    if len(counts) > len(names) or not names:
        raise DataError(
            f"Every {what} number needs a name; '{name}' has {len(names)} names and the number "
            f"{len(counts) - 1}."
        )
    if int(counts.min()) == 0:
        lacking = names[int(counts.argmin())]
        raise DataError(f"Every {what} needs rows; {what} '{lacking}' of '{name}' has none.")
