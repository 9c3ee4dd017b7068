"""Settings: frozen dataclasses that check their values when created, from Python or from TOML.

Types and bounds are annotations (`annotated_types`), which pydantic checks:

    @dataclass(frozen=True, kw_only=True)
    class DPMCL(Method):
        zeta: NonNegative = 5
"""

import dataclasses
import functools
import inspect
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Self, get_args, get_type_hints

import annotated_types as at
import pydantic

from dpmcl.exceptions import SpecError, shown, unknown

Positive = Annotated[int, at.Ge(1), at.Lt(2**63)]
NonNegative = Annotated[int, at.Ge(0), at.Lt(2**63)]
Rate = Annotated[float, at.Gt(0)]
NonNegativeFloat = Annotated[float, at.Ge(0)]
Share = Annotated[float, at.Ge(0), at.Lt(1)]
UnitInterval = Annotated[float, at.Ge(0), at.Le(1)]


@functools.cache
def _checks(cls: Any) -> dict[str, pydantic.TypeAdapter[Any]]:
    """Return pydantic's check of each field of a settings class, by name.

    Raises SpecError if the class replaces a default in a way that `dataclass` does not see.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for field in fields.values():
        value = inspect.getattr_static(cls, field.name, dataclasses.MISSING)
        if value is not field.default and not inspect.ismemberdescriptor(value):  # of slots
            raise SpecError(
                f"{field.name} of class {cls.__name__} must be a field, or its value has no "
                f"effect, got {shown(value)}; write its type too, as in '{field.name}: int = 1', "
                "and @dataclass(frozen=True, kw_only=True) above the class."
            )
    config = pydantic.ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False, extra="forbid")
    hints: dict[str, Any] = get_type_hints(cls, include_extras=True)
    out: dict[str, pydantic.TypeAdapter[Any]] = {}
    for name in cls.names():
        hint = hints[name]
        kinds = get_args(hint)
        if type(None) in kinds and (fields[name].default is not None or str not in kinds):
            hint = Annotated[hint, pydantic.BeforeValidator(lambda v: None if v == "none" else v)]
        if dataclasses.is_dataclass(hint):  # it has checked itself
            out[name] = pydantic.TypeAdapter(pydantic.InstanceOf[hint])  # type: ignore[misc, valid-type]
        else:
            out[name] = pydantic.TypeAdapter(hint, config=config)
    return out


def _message(where: str, error: pydantic.ValidationError) -> str:
    """Return a validation error of pydantic as one line: the entry, the rule and the value.

    If a setting may have several types, pydantic reports an error for each of them. The line is
    about the innermost entry, such as the -1 in [2, -1, 2].
    """
    errors = error.errors(include_url=False)
    indices = [[part for part in each["loc"] if isinstance(part, int)] for each in errors]
    deepest = max(indices, key=len)
    innermost = [each for each, index in zip(errors, indices, strict=True) if index == deepest]
    rule = " or ".join(dict.fromkeys(map(_rule, innermost)))
    if innermost[0]["type"] == "missing":
        rule, deepest = "longer", []
    value = shown(innermost[0]["input"])
    return f"{where}{''.join(f'[{i}]' for i in deepest)} must be {rule}, got {value}."


def _rule(error: Any) -> str:
    """Return the rule that a value breaks, in words that follow "must be"."""
    rule = error["msg"]
    rule = rule[0].lower() + rule[1:]
    for start in ("input should be ", "value error, "):
        rule = rule.removeprefix(start)
    plainer = {
        "a valid tuple": "a list",
        "a valid dictionary": "a table",
        "a valid string": "text in quotes ('\"...\"' in a shell)",
    }
    return plainer.get(rule, str(rule))


def _plain(value: Any) -> Any:
    """Return a value in TOML's types; numbers and arrays of NumPy and PyTorch are converted."""
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist") and not isinstance(value, type):
        with suppress(Exception):  # a meta tensor, for example: the check then refuses its type
            return value.tolist()
    return value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class of all settings that a spec can have.

    Raises:
        SpecError: A value breaks a rule.
    """

    def __post_init__(self) -> None:
        cls: Any = type(self)
        for name, check in _checks(cls).items():
            try:
                setting = _plain(getattr(self, name))
                value = check.validate_python(setting)
                if isinstance(setting, bool) and not isinstance(value, bool):
                    raise SpecError(f"{name} must be a number, got {setting}.")
            except pydantic.ValidationError as error:
                raise SpecError(_message(name, error)) from None
            except RecursionError:
                raise SpecError(f"{name} must not be nested so deeply.") from None
            object.__setattr__(self, name, value)

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the settings."""
        return [field.name for field in dataclasses.fields(cls) if field.init]

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str) -> Self:
        """Return the settings of a TOML table.

        Args:
            table: Values by name.
            where: Name of the table in messages, such as "[training]".

        Raises:
            SpecError: A name is unknown or missing, or a value breaks a rule.
        """
        for key in table:
            if key not in cls.names():
                names = ", ".join(cls.names())
                hint = f"In {where.rstrip(':')} there are: {names or 'none'}."
                raise unknown("setting", key, cls.names(), hint)
        for name, parameter in inspect.signature(cls).parameters.items():
            if name not in table and parameter.default is parameter.empty:
                raise SpecError(f"{where} needs the setting '{name}', got none.")
        try:
            return cls(**table)
        except SpecError as error:
            raise SpecError(f"{where} {error}") from None

    def to_table(self) -> dict[str, Any]:
        """Return the settings as a table that `from_table` reads.

        TOML has no None, so a setting that is None is left out, or is "none" if that is not its
        default.
        """
        out: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.init and (value is not None or field.default is not None):
                value = "none" if value is None else value
                out[field.name] = list(value) if isinstance(value, tuple) else value
        return out
