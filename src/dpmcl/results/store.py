"""The run folder: its files, and how they are read, written and extended.

    spec.toml            the complete spec, with the methods and seeds of the latest run
    errors.parquet       method, seed, after, task, split, error, examples: a row for each value
    parameters/METHOD/seed-N.safetensors
    states/METHOD/seed-N.safetensors  complete state of a replica at the end, for a learner
    work.json            gradients, rows and operations spent, by method and seed
    monitor.parquet      readings of the monitor (`--watch`), by method and seed
    predictions.safetensors  predictions by method and split, if the run stores them
    divergence.json      task, phase and update at which a replica was frozen, by method and seed
    checkpoints/METHOD/  state of an unfinished method; deleted when it is finished
    storage              name of the run's checkpoints in `--storage`, if they are kept there
    .lock                held while a process writes to the folder
    stream.json          kind, scenario, task names, the label map, a fingerprint of the data
    code.json            hashes of the source of plugins from outside the package, by method
    protocol.json        rules of a fair comparison, and their violations
    environment.json     versions, device, engine, commit of each run that added to the folder
    figures/
    tensorboard/, mlflow.db  output of trackers (`track`)
    before-fresh/        the previous run, until the run with --fresh that replaces it has finished

Files are replaced atomically, so none is ever incomplete. `errors.parquet` is written last: a seed
that it does not list has not been run.
"""

import hashlib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import pydantic
import safetensors.torch
import tomli_w

from dpmcl.core.atomic import write_bytes, write_text
from dpmcl.core.gradients import Work
from dpmcl.core.model import Kind, Theta
from dpmcl.core.settings import NonNegative
from dpmcl.core.tree import at
from dpmcl.data.field import Field
from dpmcl.exceptions import DataError, FolderError, reason
from dpmcl.results import errors_file, monitor_file, predictions_file
from dpmcl.results.record import Divergence, Record, folder_name

_BUDGET = r"^(flops|rows|bytes)=[1-9][0-9]*$"


@dataclass(frozen=True)
class StreamInfo:
    """Description of a stream for tables, figures and comparisons.

    Attributes:
        name: Name of the stream.
        kind: "classification" or "regression".
        tasks: Names of the tasks, in order.
        classes: The label map: the original label of each class number.
        scenario: The scenario in words.
        digest: Fingerprint of the data. Version 0.1 left it empty if each replica draws its own
            data.
        digest_seed: Seed whose data the fingerprint describes, if each replica draws its own data;
            None if all replicas share the data.
        fields: Input columns of a table, with their categories.
    """

    name: str
    kind: Kind
    tasks: tuple[str, ...]
    classes: tuple[str, ...]
    scenario: str = ""
    digest: str = ""
    digest_seed: NonNegative | None = None
    fields: tuple[Field, ...] = ()


Code = dict[str, dict[str, dict[str, str] | None]]
"""Hashes of source files: by method, plugin ("network 'my:Net'") and module; None for a plugin
without source."""


@dataclass(frozen=True)
class Rule:
    """A rule of a fair comparison.

    Attributes:
        rule: The rule, in words.
        violations: A line for each violation; empty if the rule holds.
    """

    rule: str
    violations: list[str]


@dataclass(frozen=True)
class Protocol:
    """Rules of a fair comparison, checked on the results of a run.

    Attributes:
        budget: Budget of each method, for example "flops=2000"; None if there is no limit.
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
        protocol: Rules of a fair comparison; None if they were not checked.
        code: Hashes of the plugins' sources, by method; empty for a folder of version 0.1.
    """

    spec: Mapping[str, Any]
    stream: StreamInfo
    records: Mapping[str, Record]
    environment: Sequence[Mapping[str, Any]] = ()
    protocol: Protocol | None = None
    code: Code = field(default_factory=dict)


EMPTY = Stored({}, StreamInfo("", "classification", (), ()), {})
"""Content of a folder without a run."""

_WORK_NAMES: Any = Literal[tuple(f.name for f in fields(Work))]
"""Names in an entry of work.json. A name that an older folder lacks counts as 0."""


def _by_seed_schema(entry: Any) -> pydantic.TypeAdapter[Any]:
    """Return the schema of a JSON table of entries by method and seed."""
    return pydantic.TypeAdapter(dict[str, dict[int, entry]])


_SCHEMAS = {
    "stream.json": pydantic.TypeAdapter[Any](StreamInfo),
    "code.json": pydantic.TypeAdapter[Any](Code),
    "work.json": _by_seed_schema(dict[_WORK_NAMES, NonNegative]),
    "divergence.json": _by_seed_schema(Divergence),
    "protocol.json": pydantic.TypeAdapter[Any](Protocol),
    "environment.json": pydantic.TypeAdapter[Any](list[dict[str, Any]]),
}
"""Schema of each JSON file."""

LOCKS = (".lock", ".lock.json")
"""Files that lock a run folder while a process writes to it (`dpmcl.core.lock`)."""

_READ = (*_SCHEMAS, errors_file.FILE, monitor_file.FILE, predictions_file.FILE)
"""Files of results, which are read together."""

FILES = (
    *_READ,
    "parameters",
    "states",
    "checkpoints",
    "storage",
    "figures",
    "tensorboard",
    "mlflow.db",
)
"""Files and folders that a run writes beside spec.toml."""


_SEAL = "# Written by a run; settings are changed elsewhere, or by --set. SHA-256 of the rest: "
"""First line of spec.toml, up to the hash, which reveals a spec that was edited after the run."""


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run.

    Args:
        folder: Any path, existing or not.
    """
    return os.path.isfile(folder / "spec.toml")  # noqa: PTH113 (no error for an impossible name)


def owner(path: Path) -> Path | None:
    """Return the run folder to which a path belongs, or None.

    A path belongs to a run folder if it is, or is in, one of the folder's `FILES` or `LOCKS`.

    Args:
        path: Any path, existing or not.
    """
    for folder in path.parents[:3]:
        if is_run(folder) and os.path.isfile(folder / "stream.json"):  # noqa: PTH113
            return folder if path.relative_to(folder).parts[0] in (*FILES, *LOCKS) else None
    return None


def load(folder: Path) -> Stored:
    """Read a run folder.

    Args:
        folder: The run folder.

    Returns:
        Its content.

    Raises:
        FolderError: The path is not a run folder, or a file in it is damaged.
    """
    if not is_run(folder):
        if (run := owner(folder)) is not None:
            raise FolderError(f"{folder} is a file of a run folder; give the folder, {run}.")
        if any(folder.glob("*/spec.toml")):
            raise FolderError(f"{folder} holds run folders; give them, as in {folder}/*/.")
        problem = "does not exist"
        if folder.exists():
            problem = "has no spec.toml" if folder.is_dir() else "is a file"
        raise FolderError(f"{folder} is not a run folder: it {problem}; make one with `dpmcl run`.")
    try:
        return _read(folder)
    except (
        ValueError, KeyError, TypeError, IndexError, AttributeError, OSError, RecursionError,
        pa.ArrowException,
    ) as error:  # fmt: skip
        raise FolderError(
            f"{folder} is damaged: {reason(error)}. Run the spec into a new folder."
        ) from None


def _read(folder: Path) -> Stored:
    """Read a run folder; any error raised means that it is damaged."""
    _check_files(folder)
    text = (folder / "spec.toml").read_text("utf-8")
    if text.startswith(_SEAL) and text != _sealed(text.partition("\n")[2]):
        raise ValueError("spec.toml was edited after the run had written it; undo that")
    spec = tomllib.loads(text)
    info = _read_json(folder / "stream.json")
    # A run may be storing a job: it writes the errors last, so the other files have their seeds.
    errors = errors_file.read(folder / errors_file.FILE, len(info.tasks))
    work = _read_json(folder / "work.json", {})
    diverged = _read_json(folder / "divergence.json", {})
    seeds = {name: splits["test"].seeds for name, splits in errors.items()}
    readings = monitor_file.read(folder / monitor_file.FILE, len(info.tasks), seeds)
    predictions = predictions_file.read(folder / predictions_file.FILE, seeds)
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
    protocol = _read_json(folder / "protocol.json", None)
    code = _read_json(folder / "code.json", {})
    return Stored(spec, info, records, environment(folder), protocol, code)


def save_start(folder: Path, spec: Mapping[str, Any], stream: StreamInfo, code: Code) -> None:
    """Write the files that are known before training: code.json, stream.json and spec.toml.

    Args:
        folder: The run folder.
        spec: The table of the spec.
        stream: Description of the data.
        code: Hashes of the plugins' sources, by method.

    Raises:
        DataError: A name in the spec or the stream is not valid Unicode, such as a file name in
            another encoding.
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
    """Return the text of a spec, preceded by a line with its hash."""
    return f"{_SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n{text}"


def save_parameters(folder: Path, method: str, seeds: tuple[int, ...], theta: Theta) -> None:
    """Write the parameters of each replica to a safetensors file.

    Tensors are named by part and parameter, as in "representation.0.weight".

    Args:
        folder: The run folder.
        method: Name of the method.
        seeds: Seed of each replica.
        theta: Parameters by part, with a leading replica dimension.
    """
    for index, seed in enumerate(seeds):
        tensors = {
            f"{part}.{name}": tensor.detach().cpu().contiguous()
            for part, parameters in at(theta, index).items()
            for name, tensor in parameters.items()
        }
        file = _seed_file(folder, "parameters", method, seed)
        write_bytes(file, safetensors.torch.save(tensors))


def save_state(folder: Path, method: str, seed: int, content: bytes) -> None:
    """Write the state of a replica after the last task.

    Args:
        folder: The run folder.
        method: Name of the method.
        seed: Seed of the replica.
        content: Named tensors, as safetensors.
    """
    write_bytes(_seed_file(folder, "states", method, seed), content)


def load_state(folder: Path, method: str, seed: int) -> bytes:
    """Return the state of a replica that `save_state` wrote.

    Args:
        folder: The run folder.
        method: Name of the method.
        seed: Seed of the replica.

    Returns:
        Named tensors, as safetensors.

    Raises:
        FolderError: The state is missing, or cannot be read.
    """
    path = _seed_file(folder, "states", method, seed)
    if not path.is_file():
        raise FolderError(
            f"{folder} has no state of '{method}' with seed {seed}; none is stored of "
            "domain-incremental streams, of seeds that were not run, and by versions before 0.3. "
            "Name a seed that was run, or run the spec into a new folder."
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise FolderError(f"{path} is damaged: {error}. Run the spec into a new folder.") from None


def _seed_file(folder: Path, kind: str, method: str, seed: int) -> Path:
    """Return the path of a replica's file in "parameters" or "states"."""
    return folder / kind / folder_name(method) / f"seed-{seed}.safetensors"


def save_records(folder: Path, records: Mapping[str, Record]) -> None:
    """Write all records, errors.parquet last, since it decides which seeds count as run.

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
    monitor_file.save(folder, records)
    predictions_file.save(folder, records)
    errors_file.save(folder, records)


def save_protocol(folder: Path, protocol: Protocol) -> None:
    """Write protocol.json.

    Args:
        folder: The run folder.
        protocol: Content of the file.
    """
    _write_json(folder / "protocol.json", protocol.to_table())


def environment(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of environment.json, or an empty list if it does not exist.

    Args:
        folder: The run folder.

    Raises:
        ValueError: The file is damaged.
    """
    entries: list[dict[str, Any]] = _read_json(folder / "environment.json", [])
    return entries


def add_environment(folder: Path, *new: Mapping[str, Any]) -> None:
    """Add entries to environment.json: the software and hardware behind the newest results.

    Seeds computed in the same environment share an entry.

    Args:
        folder: The run folder.
        new: Entries to add (`dpmcl.study.environment.describe`).
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


def _write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def _read_json(path: Path, missing: Any = None) -> Any:
    """Return the validated content of a JSON file, or `missing` if the file does not exist."""
    if not path.exists():
        return missing
    try:
        return _SCHEMAS[path.name].validate_json(path.read_bytes())
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = "".join(f"[{part!r:.40}]" for part in first["loc"])
        raise ValueError(f"{path.name}{location}: {first['msg']}") from None


def _check_files(folder: Path) -> None:
    """Raise ValueError if stream.json is missing, or if anything to be read is not a file.

    Reading a pipe would never end.
    """
    if not (folder / "stream.json").exists():
        raise ValueError("stream.json is missing")
    for name in _READ:
        if (folder / name).exists() and not (folder / name).is_file():
            raise ValueError(f"{name} is no file")
