"""Columns of a table as inputs of a model."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Field:
    """A column of a table, which becomes one or more inputs.

    Attributes:
        name: Name of the column.
        kind: "numbers" or "true/false" for one input, "categories" for one-hot inputs.
        categories: Values that the column may have, as text; empty for other kinds.
    """

    name: str
    kind: Literal["numbers", "true/false", "categories"] = "numbers"
    categories: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Name of each input that the column becomes."""
        if self.kind != "categories":
            return [self.name]
        return [f"{self.name}={value}" for value in self.categories]


def names_of(fields: Iterable[Field]) -> tuple[str, ...]:
    """Return the name of each input that columns become.

    Args:
        fields: Columns of a table.
    """
    return tuple(name for field in fields for name in field.names)
