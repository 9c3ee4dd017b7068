"""What Python users call: `run` and `load`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from dpmcl import plugins, presets
from dpmcl.core.atomic import path_of
from dpmcl.core.threads import threads
from dpmcl.data import sources
from dpmcl.data.stream import Stream
from dpmcl.exceptions import SpecError, shown, unknown
from dpmcl.methods._method import Method
from dpmcl.results import store
from dpmcl.streams.python import Python
from dpmcl.study import study
from dpmcl.study.study import Result, Watch
from dpmcl.training import spec
from dpmcl.training.keeper import Keeping

Source = str | Path | Mapping[str, Any] | Stream
Methods = str | type[Method] | Sequence[str | type[Method]] | Mapping[str, Mapping[str, Any]]

METHODS = ("naive", "er", "dpmcl", "joint")
"""What runs on a stream that comes without a spec."""


class Request:
    """A spec in the making: where it starts, then what is changed; checked at the end.

    folder: the run folder that it starts from, if it is one.
    """

    def __init__(self, source: Source) -> None:
        self._stream = source if isinstance(source, Stream) else None
        table, self.folder = _started(source)
        self._base = spec.normalised(table)
        self._changes: dict[str, Any] = {}

    @property
    def table(self) -> dict[str, Any]:
        """The spec as a table, with the changes."""
        return spec.changed(self._base, self._changes)

    def choose(self, methods: Sequence[str]) -> Self:
        """Runs these methods and no others, each with the settings that it has in the table."""
        for name in methods:
            if "," in name:
                raise SpecError(
                    "A method is named alone, as in --method er --method dpmcl, or methods=['er', "
                    f"'dpmcl'] in Python, got {shown(name)}."
                )
            plugins.find("method", name)
        before = self._base["methods"]
        self._base["methods"] = {name: before.get(name, {}) for name in methods}
        return self

    def set(self, assignments: Sequence[str]) -> Self:
        """Applies KEY=VALUE assignments in turn."""
        for text in assignments:
            self.change(spec.assignment(text))
        return self

    def change(self, changes: Mapping[str, Any]) -> Self:
        """Changes entries; a list of methods chooses among them."""
        methods = changes.get("methods", {})
        if not isinstance(methods, Mapping):
            self.choose(list(spec.normalised({"methods": methods})["methods"]))
            changes = {key: value for key, value in changes.items() if key != "methods"}
        self._changes = spec.together(self._changes, changes)
        return self

    def update(self, **entries: Any) -> Self:
        """Sets the top-level entries that are not None."""
        return self.change({k: v for k, v in entries.items() if v is not None})

    def tasks(self, tasks: int | None) -> Self:
        """Keeps the stream's first tasks."""
        return self if tasks is None else self.change({"stream": {"tasks": tasks}})

    def watch(self, what: Any) -> Self:
        """Has these watched ("terms", "stability")."""
        watch = [what] if isinstance(what, str) else what
        return self if what is None else self.change({"monitor": {"watch": watch}})

    def spec(self) -> spec.Spec:
        """The checked spec. Raises SpecError."""
        parsed = spec.Spec.parse(self.table)
        if self._stream is not None and isinstance(parsed.stream, Python):
            return replace(parsed, stream=parsed.stream.holding(self._stream))
        return parsed


@threads(1)
def run(
    source: Source,
    *,
    methods: Methods | None = None,
    replicas: int | None = None,
    seed: int | None = None,
    tasks: int | None = None,
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    device: str | None = None,
    engine: str | None = None,
    monitor: str | Sequence[str] | None = None,
    watch: Watch | None = None,
    checkpoint_seconds: float = 60.0,
    fresh: bool = False,
) -> Result:
    """Runs a study and returns its results.

    source: a preset's name ("digits"), a TOML file, a table, a stream's name, the path of data
    ("my.csv", with settings={"stream.target": "kind"}), a run folder, or a `Stream`. methods: one
    or more names, or classes of your own, or a table of their settings, as in {"er": {"lr": 0.1}};
    for data without a spec naive, er, dpmcl and joint. replicas: how many seeds, from `seed`.
    tasks: the first so many only. settings: entries by dotted name, as in {"training.lr": 0.01,
    "methods.dpmcl.zeta": 2}. out: run folder, extended by what is missing; None stores nothing,
    unless the source is a run folder, which is extended then. device: "auto", "cpu", "cuda".
    engine: "auto", "batched", "looped". monitor: what is recorded while it runs, "terms" and
    "stability" (`Result.readings`). watch: called as watch(method, done, total).
    checkpoint_seconds: between checkpoints into `out` within a task; there is one after every task
    as well. An interrupted run goes on when it is called again with the same `out`. fresh: start
    anew; what `out` holds is kept beside it until the new run has finished.

    Raises a `DpmclError` for anything that cannot be run as asked.

    >>> result = run("digits", methods=["er"], replicas=1, tasks=2)
    >>> result.errors["er"].values.shape
    (1, 3, 2)
    """
    if watch is not None and not callable(watch):
        raise SpecError(
            f"watch is called with the progress, got {shown(watch)}; monitor = ['terms'] watches."
        )
    if settings is not None and not isinstance(settings, Mapping):
        raise SpecError(
            f"settings must be a mapping, as in {{'training.lr': 0.01}}, got {shown(settings)}."
        )
    keeping = Keeping(checkpoint_seconds)
    try:
        request = Request(source)
        if methods is not None:
            tables = _tables(methods)
            request.choose(list(tables))
            request.change({"methods": {name: own for name, own in tables.items() if own != {}}})
        for key, value in (settings or {}).items():
            request.change(spec.assigned(key, value))
        request.update(replicas=replicas, seed=seed, device=device, engine=engine).tasks(tasks)
        checked = request.watch(monitor).spec()
    except RecursionError:
        raise SpecError("Settings are nested too deeply; a spec is a table of tables.") from None
    folder = request.folder if out is None else path_of(out)
    return study.run(checked, folder, watch, keeping=keeping, fresh=fresh)


@threads(1)
def load(folder: str | Path) -> Result:
    """The results that a run folder holds. Raises FolderError when it is none."""
    return study.load(path_of(folder))


def _tables(methods: Any) -> dict[str, Mapping[str, Any]]:
    """The methods by name, with the settings that come with them."""
    if isinstance(methods, Mapping):
        return {_name(method): own for method, own in methods.items()}
    if isinstance(methods, str | bytes | type | Method):
        methods = [methods]
    if not isinstance(methods, list | tuple):
        raise SpecError(f"methods must be a list of names or classes, got {shown(methods)}.")
    return {_name(method): {} for method in methods}


def _name(method: Any) -> str:
    """The name by which a spec finds a method."""
    if isinstance(method, str):
        return method
    if isinstance(method, Method):
        raise SpecError(
            f"methods must be names or classes, got an instance of {type(method).__name__}; give "
            "settings beside the name, as in methods={'er': {'updates': 3}}."
        )
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise SpecError(
            f"methods must be names or subclasses of dpmcl.Method, got {shown(method)}."
        )
    name = f"{method.__module__}:{method.__qualname__}"
    if "." in method.__qualname__:
        raise SpecError(
            f"Method '{name}' stands inside a function or a class, and is found by its name again; "
            "define it at the top of a module."
        )
    if plugins.find("method", name) is not method:
        raise SpecError(
            f"'{name}' is another class now than the one in methods; give the one of that name."
        )
    return name


def _started(source: Source) -> tuple[dict[str, Any], Path | None]:
    """The table that a source stands for, and the run folder that it is, if it is one."""
    if isinstance(source, Mapping):
        return dict(source), None
    if isinstance(source, Stream):
        stream = {"name": "python", "digest": source.digest()}
        return {"stream": stream, "methods": METHODS}, None
    if not isinstance(source, str | Path) or not str(source):
        raise SpecError(
            "A run starts from a name, a path, a table of settings or a dpmcl.Stream, got "
            f"{shown(source)}; Stream.from_table, from_arrays and from_dataset make one of data."
        )
    path = Path(source)
    if str(source) not in presets.names() and study.holds_run(path):
        return _table(path / "spec.toml"), path
    return _table(source), None


def _table(source: str | Path) -> dict[str, Any]:
    name = str(source)
    if name in presets.names():
        return spec.read(presets.text(name), f"preset '{name}'")
    streams = plugins.names("stream")
    if name in streams:
        return {"stream": name, "methods": METHODS}
    path = Path(source)
    owner = store.owner(path)
    if owner is not None:
        raise SpecError(f"{path} is a file of a run folder; give the folder, {owner}.")
    inner = next(path.glob("*/spec.toml"), None) if os.path.isdir(path) else None  # noqa: PTH112
    if inner is not None and study.holds_run(inner.parent):
        raise SpecError(f"{path} holds run folders; give one of them, as in {inner.parent}.")
    if sources.is_data(name):
        place = os.path.abspath(sources.at_home(name))  # noqa: PTH100
        return {"stream": {"path": place}, "methods": METHODS}
    if os.path.isfile(path):  # noqa: PTH113 (a name too long for a path is no error here)
        try:
            return spec.read(path.read_text("utf-8"), str(path))
        except (OSError, UnicodeDecodeError, SpecError) as error:
            told = (
                str(error) if isinstance(error, SpecError) else f"{path} cannot be read: {error}."
            )
            if path.suffix != ".toml":  # as iris.data
                ends = ", ".join(end for several in sources.suffixes().values() for end in several)
                told += f" Files of data are known by their suffix, one of {ends}."
            raise SpecError(told) from None
    there = os.path.exists(path)  # noqa: PTH110
    if ":" in name and not there:
        return {"stream": name, "methods": METHODS}
    if path.suffix == ".toml" or ("/" in name and not there):
        raise SpecError(
            f"{path} is not there; give a TOML file, a preset or a stream (`dpmcl list`), or data."
        )
    raise unknown(
        "preset, stream or spec file", name, [*presets.names(), *streams], "`dpmcl list` shows all."
    )
