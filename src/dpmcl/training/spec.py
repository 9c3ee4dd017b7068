"""A spec: every setting that affects the numbers of a study, in one TOML file.

    replicas = 50
    seed = 0
    stream = "mnist"        # short for a table with only a name; or a path, as in "my.csv"
    [training]              # for every method; the table of a method overrides it
    optimiser = "adagrad"
    lr = 1e-2
    [methods.er]            # the methods to run, in this order
    [methods.dpmcl]
    zeta = 5
    [methods.er_slow]       # the same method again, under another name
    method = "er"
    lr = 1e-3

`methods = ["naive", "er"]` is short for empty tables. "none" stands for None where a setting may be
None, as in `fisher_rows = "none"`.

--set changes entries, and so does `settings` in Python. If a change names another stream, network,
optimiser or discount, the new one starts from its defaults: the spec's settings of the old one are
dropped, and all changes by the user are kept, in any order.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import annotated_types as at

from dpmcl import plugins
from dpmcl.core.choices import DeviceName, EngineName, OnDivergence, Tracker
from dpmcl.core.precision import Precision
from dpmcl.core.settings import NonNegative, Positive, Settings
from dpmcl.data.sources import is_data, stream_for
from dpmcl.exceptions import SpecError, reason, shown, unknown
from dpmcl.methods._method import Method
from dpmcl.networks._network import NetworkSettings
from dpmcl.streams._settings import StreamSettings
from dpmcl.training.evaluation import Evaluation
from dpmcl.training.monitor import MonitorSettings

Table = dict[str, Any]
_TABLES = ("stream", "network", "training", "evaluation", "monitor", "methods")
_OWN_NAME = re.compile(r"\w([\w=+.-]{0,58}\w)?")
_TOML_ERRORS = (ValueError, RecursionError)  # TOMLDecodeError, too long a number, too deep a list


@dataclass(frozen=True, kw_only=True)
class Spec(Settings):
    """A checked spec, with every setting.

    Attributes:
        replicas: Number of seeded runs of each method; their seeds are seed, seed + 1, ...
        seed: First seed.
        dtype: Type of parameters and inputs.
        precision: Precision of products, if lower than that of float32 (`core.precision`).
        engine: Engine, or "auto". Like device, threads and workers it may differ between the runs
            of one folder.
        device: Device, or "auto".
        threads: Threads of PyTorch on a CPU; small networks run fastest on one.
        workers: Processes that share the replicas on a CPU; None for one a core, 1 for none.
        on_divergence: "freeze" a replica that is no longer finite, or "stop" the run.
        track: Trackers to which errors are written during a run: "tensorboard", "mlflow".
        split_seed: Seed of the split that all replicas share; None for a split of each replica.
        weights_seed: The same for the initial weights. (stream.order_seed is that of the tasks.)
        tuned_code: Hashes of the user's plugins with which `dpmcl tune` found the settings, by
            plugin; a run with other code warns.
        stream_name: Name of the stream's plugin; `stream` has its settings.
        network_name: Name of the network's plugin; `network` has its settings.
        evaluation: Settings of evaluation.
        monitor: Settings of the monitor.
        training: Settings in [training], for every method.
        methods: Methods by name, in the order in which they run.
        renamed: Plugins of the methods that the user renamed, by the user's name.

    Raises:
        SpecError: A setting breaks a rule.
    """

    replicas: Annotated[Positive, at.Le(100_000)] = 10
    seed: NonNegative = 0
    dtype: Literal["float32", "float64"] = "float32"
    precision: Precision | None = None
    engine: EngineName = "auto"
    device: DeviceName = "auto"
    threads: Annotated[Positive, at.Le(1024)] = 1
    workers: Annotated[Positive, at.Le(1024)] | None = None
    on_divergence: OnDivergence = "freeze"
    track: tuple[Tracker, ...] = ()
    split_seed: NonNegative | None = None
    weights_seed: NonNegative | None = None
    tuned_code: dict[str, str] | None = None
    stream_name: str
    stream: StreamSettings
    network_name: str
    network: NetworkSettings
    evaluation: Evaluation
    monitor: MonitorSettings = field(default_factory=MonitorSettings)
    training: dict[str, Any] = field(default_factory=dict)
    methods: dict[str, Any]
    renamed: dict[str, str] = field(default_factory=dict)

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
        """Return the seed of each replica."""
        return tuple(range(self.seed, self.seed + self.replicas))

    def split_seeds(self, seeds: Sequence[int]) -> tuple[int, ...]:
        """Return the seeds of the splits of replicas.

        Args:
            seeds: Seeds of replicas.
        """
        return tuple(seeds if self.split_seed is None else [self.split_seed] * len(seeds))

    def weights_seeds(self, seeds: Sequence[int]) -> tuple[int, ...]:
        """Return the seeds of the initial weights of replicas.

        Args:
            seeds: Seeds of replicas.
        """
        return tuple(seeds if self.weights_seed is None else [self.weights_seed] * len(seeds))

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> Self:
        """Return the checked spec of a table.

        Args:
            table: Content of a TOML file, short forms included.

        Raises:
            SpecError: The table is not a spec.
        """
        table = normalised(table)
        top = _top_level_names()
        known = [*top, *_TABLES]
        for key in table:
            if key not in known:
                raise unknown("setting", key, known, f"A spec has: {', '.join(known)}.")
        if "stream" not in table:
            raise SpecError(
                "A spec needs a stream, as in stream = 'digits'; `dpmcl list` shows all."
            )
        if not table.get("methods"):
            raise SpecError("A spec needs at least one method; `dpmcl list` shows all.")
        stream = plugins.from_setting("stream", table["stream"])
        network = {"name": stream.network, **table.get("network", {})}
        common = dict(table.get("training", {}))
        for key in common:
            if key not in Method.names():
                hint = f"[training] has: {', '.join(Method.names())}."
                raise unknown("setting", key, Method.names(), hint)
        methods, renamed = {}, {}
        for name, settings in table["methods"].items():
            plugin = method_of(name, settings)
            if plugin != name:
                renamed[name] = plugin
            overrides = {key: value for key, value in settings.items() if key != "method"}
            methods[name] = plugins.find("method", plugin).from_table(
                {**common, **overrides}, f"[training] or [methods.{name}]"
            )
        return cls(
            **{key: table[key] for key in top if key in table},
            stream_name=table["stream"]["name"],
            stream=stream,
            network_name=network["name"],
            network=plugins.from_setting("network", network),
            evaluation=Evaluation.from_table(table.get("evaluation", {}), "[evaluation]"),
            monitor=MonitorSettings.from_table(table.get("monitor", {}), "[monitor]"),
            training=common,
            methods=methods,
            renamed=renamed,
        )

    def to_table(self) -> Table:
        """Return all settings, defaults included, as a table that `parse` reads."""
        training = _Defaults(**self.training).to_table()
        methods = {}
        for name, method in self.methods.items():
            table = {**dict.fromkeys(training, "none"), **method.to_table()}
            own = {k: v for k, v in table.items() if k not in training or v != training[k]}
            plugin = {"method": self.renamed[name]} if name in self.renamed else {}
            methods[name] = {**plugin, **own}
        return {
            **{
                key: value for key, value in super().to_table().items() if key in _top_level_names()
            },
            "stream": {"name": self.stream_name, **self.stream.to_table()},
            "network": {"name": self.network_name, **self.network.to_table()},
            "training": training,
            "evaluation": self.evaluation.to_table(),
            "monitor": self.monitor.to_table(),
            "methods": methods,
        }


def _top_level_names() -> list[str]:
    """Return the names of the settings that are in no table."""
    tables = (*_TABLES, "stream_name", "network_name", "renamed")
    return [name for name in Spec.names() if name not in tables]


@dataclass(frozen=True, kw_only=True)
class _Defaults(Method):
    """A method without further settings, for the defaults that all methods share."""

    def phases(self, model: Any, task: Any) -> Sequence[Any]:
        return ()


def method_of(name: str, settings: Mapping[str, Any]) -> str:
    """Return the name of a method's plugin: its setting `method`, or else its name.

    Args:
        name: Name of the method in a spec.
        settings: The method's table.

    Raises:
        SpecError: The name is that of another plugin, or cannot be the name of a folder.
    """
    plugin = settings.get("method", name)
    if plugin == name:
        return name
    if name in plugins.names("method"):
        raise SpecError(
            f"[methods.{name}] must be '{name}' itself, and says method = {shown(plugin)}; give it "
            "a name of its own."
        )
    if not _OWN_NAME.fullmatch(name):
        raise SpecError(
            "A method's own name has up to 60 letters, digits and any of _ - = + . within, got "
            f"{shown(name)}; choose another."
        )
    return str(plugin)


def parse_toml(text: str, where: str) -> Table:
    """Return the table of a TOML text.

    Args:
        text: The text.
        where: Name of the source, for errors, as in "my.toml".

    Raises:
        SpecError: The text is not TOML; the error names the line.
    """
    try:
        return tomllib.loads(text)
    except _TOML_ERRORS as error:
        raise SpecError(f"{where} must be TOML: {reason(error)}.") from None


def normalised(table: Mapping[str, Any]) -> Table:
    """Return a table with its short forms written out.

    A name stands for a table with that name, a path for the stream that reads it, and a list of
    methods for their empty tables.

    Args:
        table: Content of a TOML file; it is not changed.

    Raises:
        SpecError: An entry has the wrong type.
    """
    out = _expanded(table)
    stream = out.get("stream")
    if isinstance(stream, Mapping) and "name" not in stream and isinstance(stream.get("path"), str):
        out["stream"] = {"name": stream_for(stream["path"]), **stream}
    methods = out.get("methods", {})
    if isinstance(methods, str):
        methods = [methods]
    if isinstance(methods, list | tuple):
        if not all(isinstance(name, str) for name in methods):
            raise SpecError(f"methods must be a list of names, got {shown(methods)}.")
        methods = {name: {} for name in methods}
    out["methods"] = methods
    for key in _TABLES:
        if key in out and not isinstance(out[key], Mapping):
            raise SpecError(f"[{key}] must be a table, got {shown(out[key])}.")
    for name, settings in out["methods"].items():
        if not isinstance(settings, Mapping):
            raise SpecError(f"[methods.{name}] must be a table, got {shown(settings)}.")
    return out


def _expanded(table: Mapping[str, Any]) -> Table:
    """Return a table whose short forms of stream and network, names or paths, are tables."""
    out = dict(table)
    for key in ("stream", "network"):
        value = out.get(key)
        if key == "stream" and (isinstance(value, Path) or _is_path(value)):
            out[key] = {"name": stream_for(str(value)), "path": str(value)}
        elif isinstance(value, str):
            out[key] = {"name": value}
    return out


def _is_path(stream: Any) -> bool:
    return isinstance(stream, str) and is_data(stream) and stream not in plugins.names("stream")


def parse_assignment(text: str) -> Table:
    """Return the change that an assignment describes, as a table.

    Args:
        text: KEY=VALUE, as in "training.lr=0.01": a TOML key, and a TOML value or a plain string.

    Raises:
        SpecError: The text is not an assignment.
    """
    try:
        try:
            table = tomllib.loads(text) if "=" in text else {}
        except tomllib.TOMLDecodeError:
            path, _, value = (part.strip() for part in text.partition("="))
            quoted = value.replace("\\", "\\\\").replace('"', '\\"')
            table = tomllib.loads(f'{path} = "{quoted}"')
    except _TOML_ERRORS:
        table = {}
    if not table:
        raise SpecError(
            '--set takes KEY=VALUE, as in training.lr=0.01 or methods."mine:Mine".rho=2, got '
            f"{shown(text)}."
        )
    return table


def nested_entry(path: str, value: Any) -> Table:
    """Return the change that sets one entry, as a table.

    Args:
        path: Dotted name of the entry, as in "training.lr".
        value: New value of the entry.

    Raises:
        SpecError: The path is not a dotted name.
    """
    try:
        table = parse_assignment(f"{path}=0") if isinstance(path, str) and "=" not in path else {}
    except SpecError:
        table = {}
    if not table:
        raise SpecError(
            'A setting\'s name is dotted, as in training.lr or methods."mine:Mine".rho, got '
            f"{shown(path)}."
        )
    inner = table
    while isinstance(inner[(key := next(iter(inner)))], dict):
        inner = inner[key]
    inner[key] = value
    return table


def with_changes(table: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """Return a table with changes merged into it.

    If the changes name another stream, network, optimiser or discount, the new one starts from its
    defaults: the table's settings of the old one are dropped.

    Args:
        table: Content of a TOML file, short forms included.
        changes: Entries that replace those of the table.

    Raises:
        SpecError: The changes set an entry of a method that is not in the table.
    """
    base, changes = normalised(table), _expanded(changes)
    methods = changes.get("methods")
    for name in methods if isinstance(methods, Mapping) else ():
        if name not in base["methods"]:
            plugins.find("method", name)
            raise SpecError(
                f"methods.{name} is set, and '{name}' is not among the methods of this run; "
                f"add it with --method {name} (methods=[...] in Python)."
            )
    out = normalised(_merge(base, changes, resets=True))
    if "network" in base and _network_name(base) not in (None, _network_name(out)):
        out["network"] = changes.get("network", {})
    return out


def merge_changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> Table:
    """Return two changes merged into one; if both set an entry, the second takes precedence.

    Args:
        first: Entries by name.
        second: Entries by name, applied after `first`.
    """
    return _merge(_expanded(first), _expanded(second), resets=False)


def _merge(
    base: Mapping[str, Any],
    changes: Mapping[str, Any],
    *,
    resets: bool,
    named: Sequence[str] = ("stream", "network"),
) -> Table:
    """Return a table with changes merged into it.

    Args:
        base: The table.
        changes: Entries that replace those of the table.
        resets: Whether a new name in a table drops the other entries of that table.
        named: Keys of the tables to which `resets` applies.
    """
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
                out[key] = _merge(old, value, resets=resets, named=("optimiser", "discount"))
    return out


def _network_name(table: Mapping[str, Any]) -> Any:
    """Return the name of a spec's network, by default its stream's; None for an unknown stream."""
    name = table.get("network", {}).get("name")
    stream = table.get("stream", {}).get("name")
    if name is None and isinstance(stream, str):
        with suppress(SpecError):
            return plugins.find("stream", stream).network
    return name
