"""A spec: everything that decides the numbers of a study, in one TOML file.

    replicas = 50
    seed = 0
    stream = "mnist"        # short for a table with only a name; or a path, as in "my.csv"
    [training]              # for every method; a method's own table overrides it
    optimiser = "adagrad"
    lr = 1e-2
    [methods.er]            # the methods to run, in this order
    [methods.dpmcl]
    zeta = 5

A spec's entries are changed by --set, or `settings` in Python. A changed name (of a stream, a
network, an optimiser or a discount) starts from the new one's defaults: what the spec had set of
the old one goes, and what the user sets himself stays, in whatever order.

`methods = ["naive", "er"]` is short for empty tables. A list beside tables is not TOML, strictly;
it is read all the same: the list says what runs, the tables say how.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeGuard

import annotated_types as at

from dpmcl import plugins
from dpmcl.core.precision import Precision
from dpmcl.core.settings import NonNegative, Positive, Settings
from dpmcl.data.sources import is_data, stream_for
from dpmcl.engine import DeviceName, EngineName
from dpmcl.exceptions import SpecError, shown, unknown
from dpmcl.methods._method import Method
from dpmcl.networks._network import NetworkSettings
from dpmcl.streams._settings import StreamSettings
from dpmcl.training.evaluation import Evaluation
from dpmcl.training.monitor import MonitorSettings

Table = dict[str, Any]
_TOP = (
    "replicas",
    "seed",
    "dtype",
    "precision",
    "engine",
    "device",
    "threads",
    "workers",
    "on_divergence",
    "split_seed",
    "weights_seed",
)
_TABLES = ("stream", "network", "training", "evaluation", "monitor", "methods")
_METHOD_TABLE = re.compile(r"^(\s*\[\s*)methods(\s*\.)", re.MULTILINE)
_TABLES_BESIDE_LIST = "methods beside a list"
_NO_TOML = (
    ValueError,
    RecursionError,
)  # besides TOMLDecodeError: too long a number, too deep a list


@dataclass(frozen=True, kw_only=True)
class Spec(Settings):
    """A checked spec; complete when written out (`to_table`).

    replicas: seeded runs of each method; their seeds are seed, seed + 1, ... dtype: of parameters
    and inputs. precision: of products, where less than float32's is wanted (`core.precision`).
    engine, device, threads (PyTorch's, on a CPU: small networks run fastest on one), workers
    (processes that share the replicas on a CPU, None for one a core, 1 for none): how it is
    computed; not part of what a folder's runs must share.
    on_divergence: whether a replica whose numbers stop being finite is frozen, or ends the run.
    split_seed, weights_seed: seeds of the split and of the initial weights that all replicas share;
    None for each replica's own. (The order of tasks has its own, stream.order_seed.) stream,
    network: whose names are the plugins'. monitor: what is watched. methods: by name, in order.
    """

    replicas: Annotated[Positive, at.Le(100_000)] = 10
    seed: NonNegative = 0
    dtype: Literal["float32", "float64"] = "float32"
    precision: Precision | None = None
    engine: EngineName = "auto"
    device: DeviceName = "auto"
    threads: Annotated[Positive, at.Le(1024)] = 1
    workers: Annotated[Positive, at.Le(1024)] | None = None
    on_divergence: Literal["freeze", "stop"] = "freeze"
    split_seed: NonNegative | None = None
    weights_seed: NonNegative | None = None
    stream_name: str
    stream: StreamSettings
    network_name: str
    network: NetworkSettings
    evaluation: Evaluation
    monitor: MonitorSettings = field(default_factory=MonitorSettings)
    training: dict[str, Any] = field(default_factory=dict)
    methods: dict[str, Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seed + self.replicas > 2**63:
            raise SpecError(f"Seeds must stay below 2^63, got {self.replicas} from {self.seed}.")
        if self.precision and self.dtype != "float32":
            raise SpecError(
                f"precision = '{self.precision}' needs dtype = 'float32', got '{self.dtype}'; "
                "leave out one of the two."
            )

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each replica."""
        return tuple(range(self.seed, self.seed + self.replicas))

    def split_seeds(self, seeds: Sequence[int]) -> tuple[int, ...]:
        """The seed of each replica's split."""
        return tuple(seeds if self.split_seed is None else [self.split_seed] * len(seeds))

    def weights_seeds(self, seeds: Sequence[int]) -> tuple[int, ...]:
        """The seed of each replica's initial weights."""
        return tuple(seeds if self.weights_seed is None else [self.weights_seed] * len(seeds))

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> Self:
        """Checks a table as it comes from TOML. Raises SpecError for whatever is wrong with it."""
        table = normalised(table)
        known = [*_TOP, *_TABLES]
        for key in table:
            if key not in known:
                raise unknown("setting", key, known, f"A spec has: {', '.join(known)}.")
        if "stream" not in table:
            raise SpecError(
                "A spec needs a stream, as in stream = 'digits'; `dpmcl list` shows all."
            )
        if not table.get("methods"):
            raise SpecError("A spec needs at least one method; `dpmcl list` shows all.")
        stream_name, stream = _plugin("stream", table["stream"])
        network_name, network = _plugin(
            "network", {"name": stream.network, **table.get("network", {})}
        )
        common = dict(table.get("training", {}))
        for key in common:
            if key not in Method.names():
                raise unknown("setting", key, Method.names(), f"[training] has: "
                              f"{', '.join(Method.names())}.")  # fmt: skip
        methods = {
            name: plugins.find("method", name).from_table(
                {**common, **own}, f"[training] or [methods.{name}]"
            )
            for name, own in table["methods"].items()
        }
        return cls(
            **{key: table[key] for key in _TOP if key in table},
            stream_name=stream_name,
            stream=stream,
            network_name=network_name,
            network=network,
            evaluation=Evaluation.from_table(table.get("evaluation", {}), "[evaluation]"),
            monitor=MonitorSettings.from_table(table.get("monitor", {}), "[monitor]"),
            training=common,
            methods=methods,
        )

    def to_table(self) -> Table:
        """The spec with every setting, defaults included, as a table that `parse` reads."""
        training = _Defaults(**self.training).to_table()
        methods = {}
        for name, method in self.methods.items():
            own = method.own_names()
            methods[name] = {
                k: v for k, v in method.to_table().items() if k in own or v != training[k]
            }
        top = {key: getattr(self, key) for key in _TOP}
        return {
            **{key: value for key, value in top.items() if value is not None},
            "stream": {"name": self.stream_name, **self.stream.to_table()},
            "network": {"name": self.network_name, **self.network.to_table()},
            "training": training,
            "evaluation": self.evaluation.to_table(),
            "monitor": self.monitor.to_table(),
            "methods": methods,
        }


@dataclass(frozen=True, kw_only=True)
class _Defaults(Method):
    """Only there for the defaults that all methods share."""

    def phases(self, model: Any, task: Any) -> Sequence[Any]:
        return ()


def read(text: str, where: str) -> Table:
    """The table of a TOML text. Raises SpecError with the line where it is broken."""
    try:
        return tomllib.loads(text)
    except _NO_TOML as error:
        beside = _METHOD_TABLE.sub(rf'\1"{_TABLES_BESIDE_LIST}"\2', text)
        try:
            table = tomllib.loads(beside)
        except _NO_TOML:
            raise SpecError(f"{where} must be TOML: {error}.") from None
        tables = table.pop(_TABLES_BESIDE_LIST, {})
        listed = table.get("methods")
        if not _names(listed):
            raise SpecError(f"{where} must be TOML: {error}.") from None
        for name in tables:
            if name not in listed:
                raise SpecError(
                    f"{where} has a table [methods.{name}], and does not list '{name}' in methods."
                ) from None
        table["methods"] = {name: tables.get(name, {}) for name in listed}
        return table


def _names(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def normalised(table: Mapping[str, Any]) -> Table:
    """The short forms written out.

    A name for a table with only that; a path for the stream that reads it; a list of methods for
    their tables.
    """
    out = _written_out(table)
    stream = out.get("stream")
    if isinstance(stream, Mapping) and "name" not in stream and isinstance(stream.get("path"), str):
        out["stream"] = {"name": stream_for(stream["path"]), **stream}
    methods = out.get("methods", {})
    if isinstance(methods, str):
        methods = [methods]
    if isinstance(methods, list | tuple):
        if not _names(list(methods)):
            raise SpecError(f"methods must be a list of names, got {shown(methods)}.")
        methods = {name: {} for name in methods}
    out["methods"] = methods
    for key in _TABLES:
        if key in out and not isinstance(out[key], Mapping):
            raise SpecError(f"[{key}] must be a table, got {shown(out[key])}.")
    for name, own in out["methods"].items():
        if not isinstance(name, str):
            raise SpecError(f"A method's name must be text, got {shown(name)}.")
        if not isinstance(own, Mapping):
            raise SpecError(f"[methods.{name}] must be a table, got {shown(own)}.")
    return out


def _written_out(table: Mapping[str, Any]) -> Table:
    """The table with a stream and a network as tables, where they come as names or paths."""
    out = dict(table)
    for key in ("stream", "network"):
        value = out.get(key)
        if key == "stream" and (isinstance(value, Path) or _is_path(value)):
            out[key] = {"name": stream_for(str(value)), "path": str(value)}
        elif isinstance(value, str):
            out[key] = {"name": value}
    return out


def _is_path(stream: Any) -> bool:
    return isinstance(stream, str) and stream not in plugins.names("stream") and is_data(stream)


def assignment(text: str) -> Table:
    """The change that "training.lr=0.01" stands for, as a table.

    The left side is a TOML key, the right side a TOML value or else a plain string.
    """
    path, equals, value = text.partition("=")
    try:
        if not (path.strip() and equals):
            raise ValueError
        return _assigned(path.strip(), value.strip())
    except _NO_TOML:
        raise SpecError(
            f"--set takes KEY=VALUE, as in training.lr=0.01, got {shown(text)}."
        ) from None


def assigned(path: Any, value: Any) -> Table:
    """The change that sets the entry of a dotted path to a value, as a table."""
    try:
        if not isinstance(path, str) or "\n" in path:
            raise ValueError
        nested: Any = tomllib.loads(f"{path} = 0")
        inner = nested
        while isinstance(next(iter(inner.values())), dict):
            inner = next(iter(inner.values()))
        if list(inner.values()) != [0]:
            raise ValueError
    except (*_NO_TOML, StopIteration):
        raise SpecError(
            f"A setting's name is dotted, as in training.lr, got {shown(path)}."
        ) from None
    inner[next(iter(inner))] = value
    return dict(nested)


def changed(table: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """A table with changes merged into it.

    Where they change the name of a stream, a network, an optimiser or a discount, what the table
    had set of the old one goes: the new one starts from its own defaults.
    """
    base, changes = normalised(table), _written_out(changes)
    methods = changes.get("methods")
    for name in methods if isinstance(methods, Mapping) else ():
        if name not in base["methods"]:
            plugins.find("method", name)
            raise SpecError(
                f"methods.{name} is set, and '{name}' is not among the methods of this run; "
                f"add it with --method {name} (methods=[...] in Python)."
            )
    out = normalised(_merged(base, changes, resets=True))
    if "network" in base and _network(base) not in (None, _network(out)):
        out["network"] = changes.get("network", {})
    return out


def together(first: Mapping[str, Any], second: Mapping[str, Any]) -> Table:
    """Two changes as one; where both set an entry, the second does."""
    return _merged(_written_out(first), _written_out(second), resets=False)


def _merged(
    base: Mapping[str, Any],
    changes: Mapping[str, Any],
    resets: bool,
    named: Sequence[str] = ("stream", "network"),
) -> Table:
    """resets: whether a change of name drops the rest. named: the keys of tables with a name."""
    out = dict(base)
    for key, value in changes.items():
        old = out.get(key)
        if key in named and isinstance(old, str) and isinstance(value, Mapping):
            old = {"name": old}
        if key in named and isinstance(value, str) and isinstance(old, Mapping):
            value = {"name": value}
        out[key] = value
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            before = old.get("name") if key in named else None
            renamed = before is not None and value.get("name", before) != before
            if not (resets and renamed):
                out[key] = _merged(old, value, resets, ("optimiser", "discount"))
    return out


def _network(table: Mapping[str, Any]) -> Any:
    """The name of a spec's network, its stream's where it has none; None where that is unknown."""
    name = table.get("network", {}).get("name")
    stream = table.get("stream", {}).get("name")
    if name is None and isinstance(stream, str):
        with suppress(SpecError):
            return plugins.find("stream", stream).network
    return name


def _assigned(path: str, value: str) -> Table:
    try:
        if not (found := tomllib.loads(f"{path} = {value}")):
            raise ValueError
        return found
    except tomllib.TOMLDecodeError:
        quoted = value.replace("\\", "\\\\").replace('"', '\\"')
        return tomllib.loads(f'{path} = "{quoted}"')


def _plugin(kind: str, table: Mapping[str, Any]) -> tuple[str, Any]:
    options = dict(table)
    name = options.pop("name", None)
    if not isinstance(name, str):
        raise SpecError(f"[{kind}] needs a name, as in {kind} = '...'; `dpmcl list` shows all.")
    return name, plugins.find(kind, name).from_table(options, f"{kind} '{name}':")
