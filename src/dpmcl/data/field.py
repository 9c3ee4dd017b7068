"""What a column of a table is as an input."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Field:
    """A column of a table that is an input, or several.

    Attributes:
        name: Of the column.
        kind: "numbers", "true/false" or "categories", each of which is an input of 0 and 1.
        categories: The values that it may have, as text.
    """

    name: str
    kind: Literal["numbers", "true/false", "categories"] = "numbers"
    categories: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """Return a name for each input that the column becomes."""
        if self.kind != "categories":
            return [self.name]
        return [f"{self.name}={value}" for value in self.categories]


def names_of(fields: Iterable[Field]) -> tuple[str, ...]:
    """Return a name for each input that columns become.

    Args:
        fields: The columns.
    """
    return tuple(name for field in fields for name in field.names)
