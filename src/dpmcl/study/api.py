"""The interface for Python users: `run` and `load`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FunctionType
from typing import Any, Self

from dpmcl import plugins, presets
from dpmcl.core.atomic import path_of
from dpmcl.core.threads import threads
from dpmcl.data import sources
from dpmcl.data.stream import Stream
from dpmcl.exceptions import FolderError, SpecError, shown, unknown
from dpmcl.methods._method import Method
from dpmcl.networks.python import Python, own_network
from dpmcl.results import store
from dpmcl.streams._settings import StreamSettings
from dpmcl.streams.python import Python as PythonStream
from dpmcl.study import result, runs
from dpmcl.study.bars import bars
from dpmcl.study.plan import warn_of_overrides
from dpmcl.study.result import Result
from dpmcl.study.runs import ALL, OnProgress
from dpmcl.training import spec
from dpmcl.training.keeper import Keeping

Source = str | Path | Mapping[str, Any] | Stream | StreamSettings
Methods = (
    str
    | type[Method]
    | Sequence[str | type[Method]]
    | Mapping[str, type[Method] | Mapping[str, Any]]
)

METHODS = ("naive", "er", "dpmcl", "joint")
"""Methods that run on a stream by default, if no spec names any."""


class Request:
    """A spec under construction: a source and changes to it, checked at the end.

    Attributes:
        folder: The run folder that is the source; None if the source is something else.
    """

    def __init__(self, source: Source) -> None:
        """Read a source.

        Args:
            source: A preset, a stream, a path, a table or a `Stream`, as for `run`.
        """
        self._stream = source if isinstance(source, Stream) else None
        table, self.folder = _table_and_folder(source)
        self._base = spec.normalised(table)
        self._network: Python | None = None
        self._changes: dict[str, Any] = {}

    @property
    def table(self) -> dict[str, Any]:
        """The spec as a table, with the changes applied."""
        return spec.with_changes(self._base, self._changes)

    def choose(
        self, methods: Sequence[str], changes: Mapping[str, Mapping[str, Any]] | None = None
    ) -> Self:
        """Select the methods to run, each with its settings in the table.

        Args:
            methods: Names of the methods, in order.
            changes: Changes of settings by method, on top of those in the table.

        Returns:
            This request.

        Raises:
            SpecError: There is no method of a name.
        """
        before, changes = self._base["methods"], changes or {}
        for name in methods:
            settings = changes.get(name) or before.get(name, {})
            named = settings if isinstance(settings, Mapping) else {}
            plugins.find("method", spec.method_of(name, named))
        self._base["methods"] = {name: before.get(name, {}) for name in methods}
        return self.change({"methods": {k: table for k, table in changes.items() if table != {}}})

    def set(self, assignments: Sequence[str]) -> Self:
        """Apply assignments in order.

        Args:
            assignments: Texts of the form KEY=VALUE.

        Returns:
            This request.
        """
        for text in assignments:
            self.change(spec.parse_assignment(text))
        return self

    def change(self, changes: Mapping[str, Any]) -> Self:
        """Change entries of the spec.

        Args:
            changes: Part of a spec. A list of methods selects them, as `choose` does.

        Returns:
            This request.
        """
        methods = changes.get("methods", {})
        if not isinstance(methods, Mapping):
            self.choose(list(spec.normalised({"methods": methods})["methods"]))
            changes = {key: value for key, value in changes.items() if key != "methods"}
        self._changes = spec.merge_changes(self._changes, changes)
        return self

    def update(self, *, tasks: int | None = None, watch: Any = None, **entries: Any) -> Self:
        """Set entries of the spec. Arguments that are None change nothing.

        Args:
            tasks: Number of tasks, the stream's first ones.
            watch: Readings of the theory monitor: "terms", "stability", or a list of them.
            **entries: Values of top-level entries, by name.

        Returns:
            This request.
        """
        changes: dict[str, Any] = {k: v for k, v in entries.items() if v is not None}
        if tasks is not None:
            changes["stream"] = {"tasks": tasks}
        if watch is not None:
            changes["monitor"] = {"watch": [watch] if isinstance(watch, str) else watch}
        return self.change(changes)

    def set_network(self, network: Any) -> Self:
        """Set the network: a name, a table of settings, or the user's own modules.

        Args:
            network: As for `run`.

        Returns:
            This request.
        """
        if isinstance(network, str | Mapping):
            return self.change({"network": network})
        self._network = own_network(network)
        return self.change({"network": {"name": "python", "digest": self._network.digest}})

    def spec(self) -> spec.Spec:
        """Return the checked spec.

        Raises:
            SpecError: An entry breaks a rule.
        """
        parsed = spec.Spec.parse(self.table)
        warn_of_overrides(self._base, self._changes)
        if self._stream is not None and isinstance(parsed.stream, PythonStream):
            parsed = replace(parsed, stream=parsed.stream.holding(self._stream))
        if self._network is not None and isinstance(parsed.network, Python):
            parsed = replace(parsed, network=parsed.network.holding(self._network.modules))
        return parsed


@threads(1)
def run(
    source: Source,
    *,
    methods: Methods | None = None,
    network: Any = None,
    cost: str | Callable[..., Any] | None = None,
    replicas: int | None = None,
    seed: int | None = None,
    tasks: int | None = None,
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    device: str | None = None,
    engine: str | None = None,
    monitor: str | Sequence[str] | None = None,
    progress: OnProgress | bool | None = None,
    checkpoint_seconds: float = 60.0,
    fresh: bool = False,
) -> Result:
    """Run methods on a stream, for several seeds, and return the results.

    Args:
        source: Name of a preset ("digits") or a stream, a TOML file, a table, the path of data
            ("my.csv", with settings={"stream.target": "kind"}), a run folder, a `Stream`, or the
            settings of a stream, as in Lorenz(tasks=5), whose class may be your own.
        methods: One or more names or your own classes, or a table of settings by method, as in
            {"er": {"lr": 0.1}}. A method can run under another name, as in
            {"strong": {"method": Mine, "alpha": 2.0}}. None takes those of the spec; for data
            without a spec: naive, er, dpmcl and joint.
        network: A network's name, a table of a name and settings, or your own: a module, which is
            split before its last linear layer (settings={"network.before": "head"} names another),
            two modules, or a function of (shape, outputs) that returns either. All replicas begin
            with the weights of the modules; a function is called for each replica.
            settings={"network.frozen": ["backbone"]} freezes layers.
        cost: Cost of a row: a name, or your own function of (outputs, targets) that returns one
            number a row. None takes the spec's, by default cross entropy for classes and the
            squared error for values. Short for settings={"training.cost": ...}.
        replicas: Number of seeds.
        seed: The first seed.
        tasks: Number of tasks, the stream's first ones.
        settings: Entries by dotted name, as in {"training.lr": 0.01, "methods.dpmcl.zeta": 2}.
        out: Run folder, to which missing results are added. None stores nothing, unless the source
            is a run folder, which is then extended. Call again with the same folder to resume an
            interrupted run.
        device: "auto", "cpu" or "cuda".
        engine: "auto", "batched" or "looped".
        monitor: Readings to record, "terms" and "stability" (`Result.readings`).
        progress: Called as progress(method, done, total), in updates of all replicas. True draws
            a bar for each method, and one for all of them, with the time left.
        checkpoint_seconds: Seconds between checkpoints within a task. Checkpoints are also written
            after tasks.
        fresh: Start anew; `out` keeps its earlier run until the new one has finished.

    Returns:
        The results of all methods and seeds in the folder, or of this run if there is none.

    Raises:
        SpecError: Settings or arguments break a rule.
        DpmclError: The run cannot be made for another reason.

    >>> result = run("digits", methods=["er"], replicas=1, tasks=2)
    >>> result.errors["er"].values.shape
    (1, 3, 2)
    """
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise SpecError(f"progress must be a function, or True for bars, got {shown(progress)}.")
    if settings is not None and not isinstance(settings, Mapping):
        raise SpecError(
            f"settings must be a mapping, as in {{'training.lr': 0.01}}, got {shown(settings)}."
        )
    keeping = Keeping(checkpoint_seconds)
    try:
        request = Request(source)
        if methods is not None:
            tables = _tables(methods)
            request.choose(list(tables), tables)
        if network is not None:
            request.set_network(network)
        if cost is not None:
            request.change({"training": {"cost": _cost_name(cost)}})
        for key, value in (settings or {}).items():
            request.change(spec.nested_entry(key, value))
        request.update(replicas=replicas, seed=seed, device=device, engine=engine)
        checked = request.update(tasks=tasks, watch=monitor).spec()
    except RecursionError:
        raise SpecError("Settings are nested too deeply; a spec is a table of tables.") from None
    folder = request.folder if out is None else path_of(out)
    with bars() as draw:
        report = draw if progress is True else _method_progress(progress or None)
        planned = runs.Planned(checked, folder)
        return runs.run_all([planned], report, keeping=keeping, fresh=fresh)[0]


@threads(1)
def load(folder: str | Path) -> Result:
    """Return the results in a run folder.

    Args:
        folder: The run folder.

    Raises:
        FolderError: The folder is not a run folder, or a file in it is damaged.
    """
    return result.load(path_of(folder))


def _method_progress(progress: OnProgress | None) -> OnProgress | None:
    """Return a function that reports each method's progress, but not that of all jobs together."""
    if progress is None:
        return None
    return lambda name, done, total: None if name == ALL else progress(name, done, total)


def _tables(methods: Any) -> dict[str, Mapping[str, Any]]:
    """Return the settings in the argument `methods`, by name."""
    if isinstance(methods, Mapping):
        return {_name(method): _settings(settings) for method, settings in methods.items()}
    if isinstance(methods, str | bytes | type | Method):
        methods = [methods]
    if not isinstance(methods, list | tuple):
        raise SpecError(f"methods must be a list of names or classes, got {shown(methods)}.")
    return {_name(method): {} for method in methods}


def _settings(settings: Any) -> Any:
    """Return a method's settings, with a class under "method" replaced by its name."""
    if isinstance(settings, type | Method):
        settings = {"method": settings}
    if isinstance(settings, Mapping) and "method" in settings:
        return {**settings, "method": _name(settings["method"])}
    return settings


def _name(method: Any) -> str:
    """Return the name by which a spec finds a method."""
    if isinstance(method, str):
        return method
    if not (isinstance(method, type) and issubclass(method, Method)):
        text = f"an instance of {type(method).__name__}" * isinstance(method, Method)
        raise SpecError(
            f"methods must be names or subclasses of dpmcl.Method, got {text or shown(method)}; "
            "settings stand beside the name, as in methods={'er': {'updates': 3}}."
        )
    return _plugin_name("method", method)


def _cost_name(cost: Any) -> str:
    """Return the name by which a spec finds a cost."""
    if isinstance(cost, str):
        return cost
    if not isinstance(cost, FunctionType):
        raise SpecError(f"cost must be a name or a function, got {shown(cost)}.")
    return _plugin_name("cost", cost)


def _plugin_name(kind: str, plugin: type | FunctionType) -> str:
    """Return the name by which a spec finds a class or a function of a module."""
    name = f"{plugin.__module__}:{plugin.__qualname__}"
    if not name.endswith(f":{plugin.__name__}") or plugins.find(kind, name) is not plugin:
        raise SpecError(
            f"{kind.capitalize()} '{name}' is not found by its name; define it at the top of a "
            "module, once."
        )
    return name


def _table_and_folder(source: Source) -> tuple[dict[str, Any], Path | None]:
    """Return the table of a source, and its path if it is a run folder."""
    if isinstance(source, Mapping):
        return dict(source), None
    if isinstance(source, Stream):
        return {"stream": {"name": "python", "digest": source.digest()}, "methods": METHODS}, None
    if isinstance(source, StreamSettings):
        return {"stream": _stream_table(source), "methods": METHODS}, None
    if not isinstance(source, str | Path) or not str(source):
        raise SpecError(
            "A run starts from a name, a path, a table of settings, a dpmcl.Stream or a stream's "
            f"settings, got {shown(source)}; Stream.from_table, from_arrays and from_dataset make "
            "a stream of data."
        )
    name = str(source)
    if name in presets.names():
        return spec.parse_toml(presets.text(name), f"preset '{name}'"), None
    try:
        path = path_of(source)
    except FolderError as error:
        raise SpecError(str(error)) from None
    if store.is_run(path):
        return _read_file(path / "spec.toml"), path
    if name in plugins.names("stream"):
        return {"stream": name, "methods": METHODS}, None
    return _table_of_path(name, path), None


def _stream_table(settings: StreamSettings) -> dict[str, Any]:
    """Return the table of a stream's settings, an object made in Python."""
    kind = type(settings)
    name = plugins.name_of("stream", kind) or _plugin_name("stream", kind)
    return {"name": name, **settings.to_table()}


def _table_of_path(name: str, path: Path) -> dict[str, Any]:
    """Return the table of a path: data, a TOML file, or a stream named MODULE:CLASS."""
    owner = store.owner(path)
    if owner is not None:
        raise SpecError(f"{path} is a file of a run folder; give the folder, {owner}.")
    inner = next((file.parent for file in path.glob("*/spec.toml") if file.is_file()), None)
    if inner is not None:
        raise SpecError(f"{path} holds run folders; give one of them, as in {inner}.")
    if sources.is_data(name):
        return {
            "stream": {"path": str(Path(sources.expand_home(name)).absolute())},
            "methods": METHODS,
        }
    if path.is_file():
        return _read_file(path)
    if ":" in name and not path.exists():
        return {"stream": name, "methods": METHODS}
    if path.suffix == ".toml" or ("/" in name and not path.exists()):
        raise SpecError(
            f"{path} is not there; give a TOML file, a preset or a stream (`dpmcl list`), or data."
        )
    known = [*presets.names(), *plugins.names("stream")]
    raise unknown("preset, stream or spec file", name, known, "`dpmcl list` shows all.")


def _read_file(path: Path) -> dict[str, Any]:
    """Return the table in a TOML file."""
    try:
        return spec.parse_toml(path.read_text("utf-8-sig"), str(path))
    except (OSError, UnicodeDecodeError, SpecError) as error:
        message = str(error) if isinstance(error, SpecError) else f"{path} cannot be read: {error}."
    if path.suffix != ".toml":  # as iris.data
        ends = ", ".join(suffix for suffixes in sources.suffixes().values() for suffix in suffixes)
        message += f" Files of data are known by their suffix, one of {ends}."
    raise SpecError(message)
