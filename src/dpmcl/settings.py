"""Settings are frozen dataclasses, checked once at the door, from Python and from TOML alike.

Types and bounds are written as annotations (`annotated_types`, read by pydantic):

    @dataclass(frozen=True, kw_only=True)
    class DPMCL(Method):
        zeta: NonNegative = 5
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated, Any, Self, get_type_hints

import annotated_types as at
import pydantic

from dpmcl.exceptions import SpecError, shown, unknown

Positive = Annotated[int, at.Ge(1), at.Lt(2**63)]
NonNegative = Annotated[int, at.Ge(0), at.Lt(2**63)]
Rate = Annotated[float, at.Gt(0)]
Share = Annotated[float, at.Ge(0), at.Lt(1)]


@functools.cache
def _checks(cls: Any) -> dict[str, pydantic.TypeAdapter[Any]]:
    hints = get_type_hints(cls, include_extras=True)
    config = pydantic.ConfigDict(
        strict=False, arbitrary_types_allowed=True, allow_inf_nan=False, extra="forbid"
    )
    out = {}
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        plain = isinstance(hint, type) and (dataclasses.is_dataclass(hint))
        out[field.name] = pydantic.TypeAdapter(
            pydantic.InstanceOf[hint] if plain else hint,  # type: ignore[valid-type]
            config=None if plain else config,
        )
    return out


def _line(where: str, error: pydantic.ValidationError) -> str:
    """The first complaint, as one line: the entry, the rule, what came."""
    # Of the complaints of a union's members, that which got furthest into the value.
    first = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))
    deeper = "".join(f"[{part}]" for part in first["loc"] if isinstance(part, int))
    rule = first["msg"]
    rule = rule[0].lower() + rule[1:]
    if first["type"] == "missing":
        rule, deeper = "longer", ""
    for start in ("input should be ", "value error, "):
        rule = rule.removeprefix(start)
    return f"{where}{deeper} must be {rule}, got {shown(first['input'])}."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of everything that a spec can set. Raises `SpecError` for a value that breaks a rule."""

    def __post_init__(self) -> None:
        cls: Any = type(self)
        for name, check in _checks(cls).items():
            if name not in cls.names():
                continue
            try:
                given = getattr(self, name)
                value = check.validate_python(given)
                if isinstance(given, bool) and not isinstance(value, bool):
                    raise SpecError(f"{name} must be a number, got {given}.")
            except pydantic.ValidationError as error:
                raise SpecError(_line(name, error)) from None
            object.__setattr__(self, name, value)

    @classmethod
    def names(cls) -> list[str]:
        """The names that may be set."""
        return [field.name for field in dataclasses.fields(cls) if field.init]

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str) -> Self:
        """Built from a TOML table; `where` names the table in errors, as in "[training]".

        Raises SpecError for a key that nobody reads, and for a value that breaks a rule.
        """
        for key in table:
            if key not in cls.names():
                hint = (
                    f"It has: {', '.join(cls.names())}." if cls.names() else "It has no settings."
                )
                raise unknown("setting", key, cls.names(), f"In {where}. {hint}")
        try:
            return cls(**table)
        except SpecError as error:
            raise SpecError(f"{where} {error}") from None

    def to_table(self) -> dict[str, Any]:
        """Every setting with its value; None, which TOML cannot say, is left out."""
        pairs = ((name, getattr(self, name)) for name in self.names())
        return {k: list(v) if isinstance(v, tuple) else v for k, v in pairs if v is not None}
