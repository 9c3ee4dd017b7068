"""The run folder: what is in it, how it is read, and how it grows.

    spec.toml            the complete spec; its methods and seeds are the last ones asked for
    errors.parquet       method, seed, after, task, split, error, examples: one row a value
    parameters/METHOD/seed-N.safetensors
    states/METHOD/seed-N.safetensors  all that a replica had at the end, for learners that go on
    work.json            gradients, rows and operations spent, by method and seed
    monitor.parquet      what was watched (`--watch`): a row for each method, seed and reading
    predictions.safetensors  predictions by method and split, where they are kept
    divergence.json      task, phase and update at which a replica was frozen, by method and seed
    checkpoints/METHOD/  state of an unfinished method; gone once it is finished
    storage              name under which `--storage` keeps checkpoints instead
    .lock                held while a process writes to the folder
    stream.json          kind, scenario, task names, the label map, a fingerprint of the data
    code.json            hashes of the source of plugins from outside the package, by method
    protocol.json        rules of a fair comparison, and where methods broke them
    environment.json     versions, device, engine, commit of each run that added to it
    figures/
    tensorboard/, mlflow.db  what trackers wrote (`track`)
    before-fresh/        an earlier run, until the run with --fresh that replaces it has finished

Every file appears whole or not at all. `errors.parquet` is written last: seeds that it does not
list have not been run.
"""

import hashlib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pydantic
import safetensors.torch
import tomli_w

from dpmcl.core.atomic import atomic, write_text
from dpmcl.core.errors import Errors
from dpmcl.core.gradients import Work
from dpmcl.core.model import Theta
from dpmcl.core.settings import NonNegative
from dpmcl.core.tree import at
from dpmcl.data.field import Field
from dpmcl.exceptions import DataError, FolderError
from dpmcl.results import monitored, predicted
from dpmcl.results.record import Divergence, Record

_COLUMNS = {
    "method": pa.string(),
    "seed": pa.int64(),
    "after": pa.int64(),
    "task": pa.int64(),
    "split": pa.string(),
    "error": pa.float64(),
    "examples": pa.int64(),
}


_BUDGET = r"^(flops|rows|bytes)=[1-9][0-9]*$"


@dataclass(frozen=True)
class StreamInfo:
    """Description of a stream for tables, figures and comparisons.

    Attributes:
        name: Name of the stream.
        kind: "classification" or "regression".
        tasks: Names of the tasks, in order.
        classes: The label map: the original label of each class number.
        fields: The columns of a table that are inputs, with their categories.
        scenario: The scenario in words.
        digest: Fingerprint of the data. Version 0.1 left it empty where each replica draws its own.
        digest_seed: Seed whose data the fingerprint is of, where each replica draws its own; None
            where all share them.
    """

    name: str
    kind: str
    tasks: tuple[str, ...]
    classes: tuple[str, ...]
    scenario: str = ""
    digest: str = ""
    digest_seed: NonNegative | None = None
    fields: tuple[Field, ...] = ()


Code = dict[str, dict[str, dict[str, str] | None]]
"""Hashes of sources by module, by method and plugin ("network 'my:Net'"); None without a source."""


@dataclass(frozen=True)
class Rule:
    """A rule of a fair comparison.

    Attributes:
        rule: The rule, in words.
        violations: Lines that say where methods broke it; none where it held.
    """

    rule: str
    violations: list[str]


@dataclass(frozen=True)
class Protocol:
    """The rules of a fair comparison, checked on the results of a run.

    Attributes:
        budget: What each method was to spend, as in "flops=2000"; None where it was not limited.
        rules: The rules.
    """

    budget: Annotated[str, pydantic.StringConstraints(pattern=_BUDGET)] | None
    rules: list[Rule]

    def to_table(self) -> dict[str, Any]:
        """Return the content of protocol.json."""
        return {"passed": not any(rule.violations for rule in self.rules), **asdict(self)}


@dataclass(frozen=True, eq=False)
class Stored:
    """Content of a run folder.

    Attributes:
        spec: The table of spec.toml.
        stream: Description of the data.
        records: Results by method.
        environment: Entries of environment.json.
        protocol: Rules of a fair comparison; None where they were not checked.
        code: Hashes of the plugins' sources, by method; version 0.1 recorded none.
    """

    spec: Mapping[str, Any]
    stream: StreamInfo
    records: Mapping[str, Record]
    environment: Sequence[Any] = ()
    protocol: Protocol | None = None
    code: Code = field(default_factory=dict)


LOCKS = (".lock", ".lock.json")
"""Files that hold a run folder while a process writes to it (`dpmcl.study.lock`)."""

FILES = (
    "stream.json",
    "code.json",
    "errors.parquet",
    "work.json",
    monitored.FILE,
    predicted.FILE,
    "divergence.json",
    "protocol.json",
    "environment.json",
    "parameters",
    "states",
    "checkpoints",
    "storage",
    "figures",
    "tensorboard",
    "mlflow.db",
)
"""Files and folders that a run writes beside spec.toml."""

_SPENT: Any = Literal[tuple(f.name for f in fields(Work))]
"""Names in an entry of work.json; one that an older folder lacks is 0."""


def _by_seed(entry: Any) -> pydantic.TypeAdapter[Any]:
    """Return the form of entries by method and seed."""
    return pydantic.TypeAdapter(dict[str, dict[int, entry]])


_SHAPES = {
    "stream.json": pydantic.TypeAdapter[Any](StreamInfo),
    "code.json": pydantic.TypeAdapter[Any](Code),
    "work.json": _by_seed(dict[_SPENT, NonNegative]),
    "divergence.json": _by_seed(Divergence),
    "protocol.json": pydantic.TypeAdapter[Any](Protocol),
}
"""Form of each JSON file."""


_SEAL = "# Written by a run; settings are changed elsewhere, or by --set. SHA-256 of the rest: "
"""First words of spec.toml, so that results are never shown as those of a spec edited since."""


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run.

    Args:
        folder: Any path, existing or not.
    """
    return os.path.isfile(folder / "spec.toml")  # noqa: PTH113 (no error for an impossible name)


def owner(path: Path) -> Path | None:
    """Return the run folder of which a path is a part other than spec.toml, or None.

    Args:
        path: Any path, existing or not.
    """
    for folder in path.parents[:3]:
        if is_run(folder) and os.path.isfile(folder / "stream.json"):  # noqa: PTH113
            return folder if path.relative_to(folder).parts[0] in (*FILES, *LOCKS) else None
    return None


def load(folder: Path) -> Stored:
    """Return what a run folder holds.

    Args:
        folder: The run folder.

    Raises:
        FolderError: It is no run folder, or a file in it is damaged.
    """
    if not is_run(folder):
        if (run := owner(folder)) is not None:
            raise FolderError(f"{folder} is a file of a run folder; give the folder, {run}.")
        if any(folder.glob("*/spec.toml")):
            raise FolderError(f"{folder} holds run folders; give them, as in {folder}/*/.")
        what = "does not exist"
        if folder.exists():
            what = "has no spec.toml" if folder.is_dir() else "is a file"
        raise FolderError(f"{folder} is not a run folder: it {what}; make one with `dpmcl run`.")
    try:
        return _read(folder)
    except (
        ValueError, KeyError, TypeError, IndexError, AttributeError, OSError, RecursionError,
        pa.ArrowException,
    ) as error:  # fmt: skip
        reason = str(error).split("\n")[0]
        raise FolderError(
            f"{folder} is damaged: {reason}. Run the spec into a new folder."
        ) from None


def _read(folder: Path) -> Stored:
    """Read a run folder; any error means that it is damaged."""
    text = (folder / "spec.toml").read_text("utf-8")
    if text.startswith(_SEAL) and text != _sealed(text.partition("\n")[2]):
        raise ValueError("spec.toml was edited after the run had written it; undo that")
    spec = tomllib.loads(text)
    info = _json(folder / "stream.json")
    work = _json(folder / "work.json", missing={})
    diverged = _json(folder / "divergence.json", missing={})
    errors = _read_errors(folder / "errors.parquet", len(info.tasks))
    seeds = {name: splits["test"].seeds for name, splits in errors.items()}
    readings = monitored.read(folder / monitored.FILE, len(info.tasks), seeds)
    predictions = predicted.read(folder / predicted.FILE, seeds)
    order = list(dict(spec["methods"]))
    records = {}
    for name in sorted(errors, key=lambda name: (name not in order, [*order, name].index(name))):
        # A crash may have left the other files ahead of errors.parquet.
        spent, frozen = (
            {seed: table[name][seed] for seed in seeds[name] if seed in table.get(name, {})}
            for table in (work, diverged)
        )
        records[name] = Record(
            errors[name],
            {seed: Work(**entry) for seed, entry in spent.items()},
            frozen,
            readings.get(name),
            predictions.get(name),
        )
    checked = folder / "protocol.json"
    protocol = _json(checked) if checked.exists() else None
    code = _json(folder / "code.json", missing={})
    return Stored(spec, info, records, environment(folder), protocol, code)


def save_start(folder: Path, spec: Mapping[str, Any], stream: StreamInfo, code: Code) -> None:
    """Write what is known before training: the code, the stream's description and the spec.

    Args:
        folder: The run folder.
        spec: The table of the spec.
        stream: Description of the data.
        code: Hashes of the plugins' sources, by method.

    Raises:
        DataError: A name cannot be written as UTF-8, as a file's name in another encoding.
    """
    text = tomli_w.dumps(dict(spec))
    for name in (stream.name, *stream.tasks, *stream.classes, *text.split("\n")):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise DataError(f"'{name:.200}' cannot be stored as UTF-8; rename it.") from None
    _write_json(folder / "code.json", code)
    known = {key: value for key, value in asdict(stream).items() if value is not None}
    _write_json(folder / "stream.json", known)
    write_text(folder / "spec.toml", _sealed(text))


def _sealed(text: str) -> str:
    """Return the text of a spec after a line with its hash."""
    return f"{_SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n{text}"


def save_parameters(folder: Path, method: str, seeds: tuple[int, ...], theta: Theta) -> None:
    """Write one safetensors file a replica: "representation.0.weight" and so on.

    Args:
        folder: The run folder.
        method: Name of the method.
        seeds: Seed of each replica.
        theta: Parameters by part, replicas first.
    """
    for index, seed in enumerate(seeds):
        tensors = {
            f"{part}.{name}": tensor.detach().cpu().contiguous()
            for part, parameters in at(theta, index).items()
            for name, tensor in parameters.items()
        }
        with atomic(_seed_file(folder, "parameters", method, seed)) as temporary:
            temporary.write_bytes(safetensors.torch.save(tensors))


def save_state(folder: Path, method: str, seed: int, content: bytes) -> None:
    """Write what a replica had at the end.

    Args:
        folder: The run folder.
        method: Name of the method.
        seed: The replica's.
        content: Named tensors, as safetensors.
    """
    with atomic(_seed_file(folder, "states", method, seed)) as temporary:
        temporary.write_bytes(content)


def load_state(folder: Path, method: str, seed: int) -> bytes:
    """Return what `save_state` wrote.

    Args:
        folder: The run folder.
        method: Name of the method.
        seed: The replica's.

    Raises:
        FolderError: There is none, or it cannot be read.
    """
    path = _seed_file(folder, "states", method, seed)
    if not path.is_file():
        raise FolderError(
            f"{folder} has no state of '{method}' with seed {seed}; folders have them since "
            "version 0.3, of the seeds that have been run, unless each task sees the inputs in a "
            "way of its own. Run the spec into a new folder."
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise FolderError(f"{path} is damaged: {error}. Run the spec into a new folder.") from None


def _seed_file(folder: Path, kind: str, method: str, seed: int) -> Path:
    """Return the file of a replica below "parameters" or "states"."""
    return folder / kind / method.replace(":", ".") / f"seed-{seed}.safetensors"


def save_records(folder: Path, records: Mapping[str, Record]) -> None:
    """Write all records; errors.parquet last, since it says what has been run.

    Args:
        folder: The run folder.
        records: Results by method.
    """
    methods = sorted(records.items())
    spent = {
        name: {seed: asdict(work) for seed, work in sorted(record.work.items())}
        for name, record in methods
    }
    _write_json(folder / "work.json", spent)
    diverged = {
        name: {seed: where._asdict() for seed, where in record.diverged.items()}
        for name, record in methods
        if record.diverged
    }
    if diverged or (folder / "divergence.json").exists():
        _write_json(folder / "divergence.json", diverged)
    monitored.save(folder, records)
    predicted.save(folder, records)
    with atomic(folder / "errors.parquet") as temporary:
        pq.write_table(errors_table(records), temporary)


def errors_table(records: Mapping[str, Record]) -> pa.Table:
    """Return errors as they are stored: a row for each method, split, seed, after and task.

    Args:
        records: Results by method.
    """
    columns = [
        _columns_of(name, split, errors)
        for name, record in sorted(records.items())
        for split, errors in sorted(record.errors.items())
    ]
    tables = [pa.table(c, schema=pa.schema(_COLUMNS)) for c in columns]
    return pa.concat_tables([pa.schema(_COLUMNS).empty_table(), *tables]).combine_chunks()


def save_protocol(folder: Path, protocol: Protocol) -> None:
    """Write protocol.json.

    Args:
        folder: The run folder.
        protocol: Its content.
    """
    _write_json(folder / "protocol.json", protocol.to_table())


def add_environment(folder: Path, *new: Mapping[str, Any]) -> None:
    """Add entries to environment.json: what computed the newest results.

    Seeds that were computed alike share an entry.

    Args:
        folder: The run folder.
        new: The entries (`dpmcl.study.environment.describe`).
    """
    entries = environment(folder)
    for entry in new:
        for known in entries:
            if {**known, "seeds": [], "finished": ""} == {**entry, "seeds": [], "finished": ""}:
                known["seeds"] = sorted({*known["seeds"], *entry["seeds"]})
                known["finished"] = entry["finished"]
                break
        else:
            entries.append(dict(entry))
    _write_json(folder / "environment.json", entries)


def environment(folder: Path) -> list[Any]:
    """Return the entries of environment.json; none if it cannot be read.

    Args:
        folder: The run folder.
    """
    try:
        entries = json.loads(_file(folder / "environment.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    return entries if isinstance(entries, list) else []


def _columns_of(method: str, split: str, errors: Errors) -> dict[str, np.ndarray]:
    """Return the error tensor as columns, a row for each value that was evaluated."""
    evaluated = ~np.isnan(errors.values).all(0)
    replica, a, k = np.nonzero(np.broadcast_to(evaluated, errors.values.shape))
    return {
        "method": np.full(len(replica), method, dtype=object),
        "seed": np.asarray(errors.seeds)[replica],
        "after": a - 1,
        "task": k,
        "split": np.full(len(replica), split, dtype=object),
        "error": errors.values[replica, a, k],
        "examples": errors.examples[replica, k],
    }


def _read_errors(path: Path, tasks: int) -> dict[str, dict[str, Errors]]:
    """Return the errors by method and split."""
    if not path.exists():
        return {}
    column = _read_columns(path, tasks)
    out: dict[str, dict[str, Errors]] = {}
    for method, split in sorted(set(zip(column["method"], column["split"], strict=True))):
        rows = (column["method"] == method) & (column["split"] == split)
        if tasks > rows.sum():  # before any room is made for them
            raise ValueError(f"errors.parquet has too few rows for {tasks} tasks")
        seeds, replica = np.unique(column["seed"][rows], return_inverse=True)
        values = np.full((len(seeds), 1 + tasks, tasks), np.nan)
        examples = np.zeros((len(seeds), tasks), dtype=np.int64)
        after, task = column["after"][rows], column["task"][rows]
        values[replica, after + 1, task] = column["error"][rows]
        examples[replica, task] = column["examples"][rows]
        errors = Errors(tuple(int(s) for s in seeds), values, examples)
        out.setdefault(method, {})[split] = errors
    for method, splits in out.items():
        if not method or "test" not in splits or len({e.seeds for e in splits.values()}) > 1:
            raise ValueError(f"errors.parquet lacks test errors of a seed of method '{method}'")
    return out


def _read_columns(path: Path, tasks: int) -> dict[str, Any]:
    """Return the columns of errors.parquet, of the right type and within their ranges."""
    with pq.ParquetFile(_file(path)) as file:  # `read_table` takes folders named a=1 for columns
        table = file.read(use_threads=False)  # a file is small, and a study has many
    for name, kind in _COLUMNS.items():
        column = table[name]
        if column.type != kind or column.null_count:
            raise ValueError(f"{name} in errors.parquet is not {kind} in every row")
    out = {name: table[name].to_numpy() for name in _COLUMNS}
    least = {"seed": 0, "after": -1, "task": 0, "examples": 0}
    for name, low in least.items():
        most = tasks - 1 if name in ("after", "task") else np.iinfo(np.int64).max
        if ((out[name] < low) | (out[name] > most)).any():
            raise ValueError(f"{name} in errors.parquet is out of range")
    return out


def _write_json(path: Path, content: Any) -> None:
    """Write a JSON file whole or not at all."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def _json(path: Path, missing: Any = None) -> Any:
    """Return the content of a JSON file, checked; `missing` where there is no such file."""
    if missing is not None and not path.exists():
        return missing
    try:
        return _SHAPES[path.name].validate_json(_file(path).read_bytes())
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = "".join(f"[{part!r:.40}]" for part in first["loc"])
        raise ValueError(f"{path.name}{place}: {first['msg']}") from None


def _file(path: Path) -> Path:
    """Return the path if it is of a file; reading a pipe would never end."""
    if not path.is_file():
        raise ValueError(f"{path.name} is {'no file' if path.exists() else 'missing'}")
    return path
