"""Labels of the classes that a learner knows, and their class numbers."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import pydantic
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpmcl.data.labelled import kind_of
from dpmcl.data.labels import family_of, is_whole, number_labels
from dpmcl.data.plain_arrays import plain_array
from dpmcl.exceptions import DataError, listed

_FAMILY = "^(|strings|whole numbers|true/false)$"
_TYPE = "^(|str|bool|u?int(8|16|32|64)|float(16|32|64))$"


@dataclass(frozen=True)
class LabelMap:
    """Labels by class number, with their original type.

    Attributes:
        names: The label of each class number, as text.
        family: "strings", "whole numbers" or "true/false"; empty before the first label.
        dtype: Name of the NumPy type in which labels are returned.
        fixed: Whether other labels are refused.
    """

    names: tuple[str, ...] = ()
    family: Annotated[str, pydantic.Field(pattern=_FAMILY)] = ""
    dtype: Annotated[str, pydantic.Field(pattern=_TYPE)] = ""
    fixed: bool = False

    def numbered(self, labels: Any, what: str) -> tuple["LabelMap", Tensor]:
        """Return the map extended by new labels, and the class number of each row.

        New labels get the next class numbers, in sorted order (`number_labels`).

        Args:
            labels: Strings, integers or booleans (rows,).
            what: Name of the labels in error messages, such as "Labels".

        Raises:
            DataError: They cannot be used as labels, are of another type than the labels before,
                or are not among the declared classes.
        """
        labels = list(labels) if isinstance(labels, Iterator) else labels
        y, names = number_labels(labels, what)
        family, dtype = family_of(labels), _type_of(labels)
        if self.family and family not in ("", self.family):
            raise DataError(
                f"{what} must be {self.family}, as those learned before, got {family}; convert "
                "them."
            )
        new = [name for name in names if name not in self.names]
        if new and self.fixed:
            raise DataError(
                f"{what} must be among the classes {listed(self.names)}, got {new[0]!r}; leave out "
                "classes= for a learner to which classes are added as they come."
            )
        extended = replace(
            self,
            names=(*self.names, *new),
            family=family,
            dtype=_common_type(self.dtype, dtype),
        )
        number = torch.tensor([extended.names.index(name) for name in names])
        return extended, number[y]

    def originals(self) -> NDArray[Any]:
        """Return the labels by class number in their original type: str, integers or booleans."""
        if self.family == "strings":
            return np.array(self.names)
        integers = self.family == "whole numbers"
        values = [int(name) if integers else name == "True" for name in self.names]
        with suppress(OverflowError):
            array = np.array(values, dtype=self.dtype)
            if array.tolist() == values:
                return array
        return np.array(values, dtype=object)


def declared_labels(classes: Any) -> LabelMap:
    """Return the map of classes that are declared in advance, in the given order.

    Args:
        classes: Labels of all classes.

    Raises:
        DataError: They cannot be used as labels, there is none, or one is repeated.
    """
    y, names = number_labels(classes, "classes")
    if len(names) < max(len(y), 1):
        raise DataError(
            "classes must name at least one class, and each class once; leave out those that are "
            "repeated, or classes=."
        )
    ordered = tuple(names[k] for k in y.tolist())
    return LabelMap(ordered, family_of(classes), _type_of(classes), fixed=True)


def labels_of_names(classes: Sequence[str]) -> LabelMap:
    """Return the map of classes whose labels are known only as text, such as those of a stored run.

    Args:
        classes: Labels as text. They become integers or booleans if all of them can.
    """
    if all(is_whole(name) and -(2**63) <= int(name) < 2**63 for name in classes):
        return LabelMap(tuple(classes), "whole numbers", "int64", fixed=True)
    if {*classes} <= {"True", "False"}:
        return LabelMap(tuple(classes), "true/false", "bool", fixed=True)
    return LabelMap(tuple(classes), "strings", "str", fixed=True)


def _type_of(labels: Any) -> str:
    """Return the name of the NumPy type in which labels are returned."""
    array = plain_array(labels, "Labels") if isinstance(labels, Tensor) else np.asarray(labels)
    if family_of(labels) == "strings":
        return "str"
    is_rounded = array.dtype.kind == "f" and kind_of(labels) == "classification"  # [2**63, 1]
    return str(array.dtype) if array.dtype.kind in "biuf" and not is_rounded else "int64"


def _common_type(first: str, second: str) -> str:
    """Return the name of a type that holds the values of both types, of two integer types int64."""
    if first in ("", second):
        return second
    common = np.promote_types(first, second)
    is_integer = "f" not in (np.dtype(first).kind, np.dtype(second).kind)
    # NumPy has no integer type for uint64 and int64, and would make floats of them.
    return "int64" if common.kind == "f" and is_integer else str(common)
