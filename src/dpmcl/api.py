"""What Python users call: `run` and `load`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from dpmcl import plugins, presets, sources, spec, study
from dpmcl.exceptions import SpecError, unknown
from dpmcl.keeper import Keeping
from dpmcl.method import Method
from dpmcl.stream import Stream
from dpmcl.streams.python import Python
from dpmcl.study import Result, Watch

Source = str | Path | Mapping[str, Any] | Stream

METHODS = ("naive", "er", "dpmcl", "joint")
"""What runs on a stream that comes without a spec."""


class Request:
    """A spec in the making: where it starts, then what is changed; checked at the end."""

    def __init__(self, source: Source) -> None:
        self._stream = source if isinstance(source, Stream) else None
        self.table = spec.normalised(_table(source))

    def choose(self, methods: Sequence[str]) -> Self:
        """Runs these methods and no others, each with the settings that it has in the table."""
        for name in methods:
            plugins.find("method", name)
        self.table["methods"] = {name: self.table["methods"].get(name, {}) for name in methods}
        return self

    def set(self, assignments: Sequence[str]) -> Self:
        """Applies KEY=VALUE assignments in turn."""
        for assignment in assignments:
            self.table = spec.override(self.table, assignment)
        return self

    def update(self, **entries: Any) -> Self:
        """Sets the top-level entries that are not None."""
        self.table.update({k: v for k, v in entries.items() if v is not None})
        return self

    def tasks(self, tasks: int | None) -> Self:
        """Keeps the stream's first tasks."""
        if tasks is not None:
            self.table["stream"] = {**self.table.get("stream", {}), "tasks": tasks}
        return self

    def watch(self, what: Sequence[str] | None) -> Self:
        """Has these watched ("terms", "stability")."""
        if what is not None:
            self.table["monitor"] = {**self.table.get("monitor", {}), "watch": list(what)}
        return self

    def spec(self) -> spec.Spec:
        """The checked spec. Raises SpecError."""
        parsed = spec.Spec.parse(self.table)
        if self._stream is not None and isinstance(parsed.stream, Python):
            return replace(parsed, stream=parsed.stream.holding(self._stream))
        return parsed


def run(
    source: Source,
    *,
    methods: Sequence[str | type[Method]] | None = None,
    replicas: int | None = None,
    seed: int | None = None,
    tasks: int | None = None,
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    device: str | None = None,
    engine: str | None = None,
    monitor: Sequence[str] | None = None,
    watch: Watch | None = None,
    checkpoint_seconds: float = 60.0,
    fresh: bool = False,
) -> Result:
    """Runs a study and returns its results.

    source: a preset's name ("digits"), a TOML file, a table, a stream's name, the path of data
    ("my.csv", with settings={"stream.target": "kind"}), or a `Stream`. methods: names, or classes
    of your own; for data without a spec naive, er, dpmcl and joint. replicas: how many seeds, from
    `seed`. tasks: the first so many only. settings: entries by dotted name, as in
    {"training.lr": 0.01, "methods.dpmcl.zeta": 2}. out: run folder, extended by what is missing;
    None stores nothing. device: "auto", "cpu", "cuda". engine: "auto", "batched", "looped".
    monitor: what is recorded while it runs, "terms" and "stability" (`Result.readings`).
    watch: called as watch(method, done, total). checkpoint_seconds: between checkpoints into `out`
    within a task; there is one after every task as well. An interrupted run goes on when it is
    called again with the same `out`. fresh: start anew; what `out` holds is kept beside it until
    the new run has finished.

    Raises a `DpmclError` for anything that cannot be run as asked.

    >>> result = run("digits", methods=["er"], replicas=1, tasks=2)
    >>> result.errors["er"].values.shape
    (1, 3, 2)
    """
    if watch is not None and not callable(watch):
        raise SpecError(
            f"watch is called with the progress, got {watch!r}; monitor = ['terms'] watches."
        )
    request = Request(source)
    if methods is not None:
        request.choose(
            [m if isinstance(m, str) else f"{m.__module__}:{m.__qualname__}" for m in methods]
        )
    for key, value in (settings or {}).items():
        request.table = spec.assign(request.table, key, value)
    request.update(replicas=replicas, seed=seed, device=device, engine=engine).tasks(tasks)
    request.watch(monitor)
    folder = Path(out) if out is not None else None
    return study.run(
        request.spec(), folder, watch, keeping=Keeping(checkpoint_seconds), fresh=fresh
    )


def load(folder: str | Path) -> Result:
    """The results that a run folder holds. Raises FolderError when it is none."""
    return study.load(Path(folder))


def _table(source: Source) -> dict[str, Any]:
    if isinstance(source, Mapping):
        return dict(source)
    if isinstance(source, Stream):
        stream = {"name": "python", "digest": source.digest()}
        return {"stream": stream, "methods": METHODS}
    name = str(source)
    if name in presets.names():
        return spec.read(presets.text(name), f"preset '{name}'")
    streams = plugins.names("stream")
    if name in streams:
        return {"stream": name, "methods": METHODS}
    path = Path(source)
    if study.holds_run(path):
        path = path / "spec.toml"
    elif sources.is_data(name):
        place = os.path.abspath(sources.at_home(name))  # noqa: PTH100
        return {"stream": {"path": place}, "methods": METHODS}
    if os.path.isfile(path):  # noqa: PTH113 (a name too long for a path is no error here)
        try:
            return spec.read(path.read_text("utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"{path} cannot be read: {error}.") from None
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
