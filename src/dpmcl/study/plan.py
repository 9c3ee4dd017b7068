"""Plan the runs of a study, one for each combination of values of the settings that it varies."""

import itertools
import logging
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dpmcl import plugins
from dpmcl.exceptions import SpecError, shown
from dpmcl.results.comparison import setting_text
from dpmcl.training import spec

_LOG = logging.getLogger("dpmcl")

T = TypeVar("T")

Axes = Mapping[str, Sequence[Any]]
"""The values of each varied setting, by its dotted name."""

BASE = "base"
"""Name of the run of methods that no axis varies."""

_LONGEST = 100  # largest number of characters in a folder's name


@dataclass(frozen=True, eq=False)
class Variant:
    """A run of a study.

    Attributes:
        name: Name of the run's folder.
        table: Spec of the run.
        point: The value of each axis that varies the run's methods.
    """

    name: str
    table: Mapping[str, Any]
    point: Mapping[str, Any] = field(default_factory=dict)


def variants(table: Mapping[str, Any], axes: Axes) -> list[Variant]:
    """Return a run for each combination of values.

    An axis in a method's own table varies only that method, and an axis of [training] does not vary
    methods with their own value of the setting. No method is run again for an axis that does not
    vary it.

    Args:
        table: The spec that all runs share.
        axes: The settings to vary, and their values.

    Raises:
        SpecError: There is no method; or an axis is not a setting that can vary, has no values or
            one twice, or varies no method.

    >>> varied = variants({"stream": "digits", "methods": ["er"]}, {"training.lr": [0.1, 1.0]})
    >>> [variant.name for variant in varied]
    ['lr=0.1', 'lr=1']
    """
    base = spec.normalised(table)
    if not base["methods"]:
        raise SpecError("A study needs at least one method; `dpmcl list` shows all.")
    for key, values in axes.items():
        check_axis(key, values)
    owners = {key: owner_of(key) for key in axes}
    for key, owner in owners.items():
        if owner is not None and owner not in base["methods"]:
            raise SpecError(
                f"'{key}' varies '{owner}', which is not among the methods of this study: "
                f"{', '.join(base['methods'])}; add it, or leave the axis out."
            )
    keys_by_method = {
        method: [
            key
            for key, owner in owners.items()
            if owner == method
            or (
                owner is None
                and not overrides(settings, key)
                and _method_key(method, key) not in axes
            )
        ]
        for method, settings in base["methods"].items()
    }
    for key in axes:
        if not any(key in keys for keys in keys_by_method.values()):
            raise SpecError(
                f"'{key}' varies nothing, since every method has that setting of its own; vary "
                f"{_method_key(next(iter(keys_by_method)), key)} and so on."
            )
    runs: dict[str, tuple[dict[str, Any], list[str]]] = {}  # TOML's tables and lists have no hash
    for method, keys in keys_by_method.items():
        for values in itertools.product(*(axes[key] for key in keys)):
            point = dict(zip(keys, values, strict=True))
            runs.setdefault(repr(point), (point, []))[1].append(method)
    out: list[Variant] = []
    for point, methods in runs.values():
        run_table = {**base, "methods": {name: base["methods"][name] for name in methods}}
        for key, value in point.items():
            run_table = spec.with_changes(run_table, spec.nested_entry(key, value))
        name = _name(point, list(axes), {variant.name for variant in out})
        out.append(Variant(name, run_table, point))
    return out


def overrides(settings: Any, key: str) -> bool:
    """Return True if a method's own table has a setting of [training], which then overrides it.

    Args:
        settings: The method's table; any other value counts as a table without settings.
        key: Dotted name of any setting.
    """
    table, _, rest = key.partition(".")
    return (
        table == "training" and isinstance(settings, Mapping) and rest.partition(".")[0] in settings
    )


def warn_of_overrides(table: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Warn of methods whose own settings override a change of [training].

    Among them are numbers of updates in place of `updates`, as a stored spec has them.

    Args:
        table: A spec, before the changes.
        changes: The changes, as part of a spec.
    """
    training, methods = (
        value if isinstance(value := changes.get(part), Mapping) else {}
        for part in ("training", "methods")
    )
    for key in training:
        kept = [
            f"methods.{name}.{own}"
            for name, settings in table["methods"].items()
            for own in (
                key,
                *_numbers_in_place_of(key, name, {**settings, **methods.get(name, {})}),
            )
            if overrides(settings, f"training.{own}")
            and not overrides(methods.get(name), f"training.{own}")
        ]
        if kept:
            _LOG.warning(
                f"training.{key} is set, and overridden by {', '.join(kept)}; set {kept[0]} as "
                "well."
            )


def _numbers_in_place_of(key: str, name: str, settings: Mapping[str, Any]) -> list[str]:
    """Return a method's own numbers of updates, which replace the training setting of a key."""
    if key not in ("updates", "passes"):
        return []
    method = plugins.find("method", spec.method_of(name, settings))
    return [count for count in method.counts if count != "updates"]


def axis(text: str) -> tuple[str, list[Any]]:
    """Return the name and the values of an axis written as KEY=VALUE,VALUE.

    Args:
        text: A dotted name, and values in TOML or as plain text, as in "methods.dpmcl.zeta=0,2,5".

    Raises:
        SpecError: The text does not have that form.

    >>> axis("methods.dpmcl.guard=none,clip")
    ('methods.dpmcl.guard', ['none', 'clip'])
    """
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not values:
        raise SpecError(
            f"--sweep takes KEY=VALUE,VALUE, as in training.lr=0.01,0.1, got {shown(text)}."
        )
    try:
        return key, list(tomllib.loads(f"values = [{values}]")["values"])
    except tomllib.TOMLDecodeError:
        texts = values.split(",")
        return key, [spec.parse_assignment(f"value={value}")["value"] for value in texts]


def axes_by_name(axes: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return axes by name.

    Args:
        axes: The name and the values of each axis.

    Raises:
        SpecError: Two axes have the same name.
    """
    out: dict[str, T] = {}
    for key, values in axes:
        if key in out:
            raise SpecError(f"'{key}' is varied twice; give all its values at once.")
        out[key] = values
    return out


def read(table: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the spec and the axes of a study's table.

    Args:
        table: Content of the study's TOML file: a spec, and [axes].

    Raises:
        SpecError: [axes] is not a table.
    """
    rest = {key: value for key, value in table.items() if key != "axes"}
    axes = table.get("axes", {})
    if not isinstance(axes, Mapping):
        raise SpecError(
            f'[axes] must be a table, as in "training.lr" = [0.01, 0.1], got {shown(axes)}.'
        )
    return rest, dict(axes)


def check_axis(key: str, values: Any) -> None:
    """Check the axis of a study or of a search.

    Args:
        key: Dotted name of a setting.
        values: Values of the setting.

    Raises:
        SpecError: There is no such setting, all runs must have the same value of it, or there are
            no values, or one twice.
    """
    spec.nested_entry(key, 0)
    if not isinstance(values, list | tuple) or not values:
        raise SpecError(
            f'An axis must have a list of values, as in "{key}" = [0, 2, 5], got {shown(values)}.'
        )
    if repeated := [v for i, v in enumerate(values) if v in values[:i]]:
        raise SpecError(f"Values of an axis must differ, and '{key}' has {repeated[0]!r} twice.")
    if key.partition(".")[0] in ("replicas", "seed", "methods") and key.count(".") < 2:
        raise SpecError(
            f"'{key}' cannot be an axis: all runs of a study have the same seeds and methods; set "
            "it beside [axes]."
        )


def owner_of(key: str) -> str | None:
    """Return the method whose table has a setting; None for a setting of all methods.

    Args:
        key: Dotted name of the setting.
    """
    methods = spec.nested_entry(key, 0).get("methods")
    return str(next(iter(methods))) if methods else None


def _method_key(method: str, key: str) -> str:
    """Return the name of a setting of [training] in the table of a method."""
    return f"methods.{method}.{key.partition('.')[2]}"


def _name(point: Mapping[str, Any], axes: Sequence[str], taken: set[str]) -> str:
    """Return the name of a run's folder, different from those already taken."""
    names = [key.rpartition(".")[2] for key in axes]
    parts = []
    for key, value in point.items():
        short = key.rpartition(".")[2]
        parts.append(f"{short if names.count(short) == 1 else key}={setting_text(value)}")
    name = re.sub(r"[^\w.,=+-]+", "-", ",".join(parts) or BASE)[:_LONGEST]
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    while name in taken:
        name = next(numbered)
    return name
