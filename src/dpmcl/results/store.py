"""The run folder: what is in it, how it is read, and how it grows.

    spec.toml            the complete spec; its methods and seeds are the last ones asked for
    errors.parquet       method, seed, after, task, split, error, examples: one row a value
    parameters/METHOD/seed-N.safetensors
    work.json            gradients and rows spent, by method and seed
    monitor.parquet      what was watched (`--watch`): a row for each method, seed and reading
    divergence.json      task, phase and update at which a replica was frozen, by method and seed
    checkpoints/METHOD/  where an unfinished method stands; gone once it is finished
    .lock                held while a process writes to the folder
    stream.json          kind, scenario, task names, the label map, a fingerprint of the data
    code.json            hashes of the source of plugins from outside the package, by method
    environment.json     versions, device, engine, commit of each run that added to it
    figures/
    .fresh.json          where earlier results are kept, until a run with --fresh has finished

Every file appears whole or not at all; `errors.parquet` is written last, and what it does not
list has not been run.
"""

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

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
from dpmcl.exceptions import DataError, FolderError
from dpmcl.results import monitored
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


@dataclass(frozen=True)
class StreamInfo:
    """What tables and figures need to know of a stream.

    classes: the label map, the original label of each class number. digest: a fingerprint of the
    data. digest_seed: of whose data, where each replica draws its own; None where all share them.
    Version 0.1 left the digest of such streams empty.
    """

    name: str
    kind: str
    tasks: tuple[str, ...]
    classes: tuple[str, ...]
    scenario: str = ""
    digest: str = ""
    digest_seed: NonNegative | None = None


Code = dict[str, dict[str, dict[str, str] | None]]
"""By method and plugin ("network 'my:Net'"), hashes of sources by module; None without a source."""


@dataclass(frozen=True, eq=False)
class Stored:
    """A run folder's content. spec: the table of spec.toml. records: by method."""

    spec: dict[str, Any]
    stream: StreamInfo
    records: dict[str, Record]


LOCKS = (".lock", ".lock.json")
"""Files that hold a run folder while a process writes to it (`dpmcl.study.lock`)."""

FILES = (
    "stream.json",
    "code.json",
    "errors.parquet",
    "work.json",
    monitored.FILE,
    "divergence.json",
    "environment.json",
    "parameters",
    "checkpoints",
    "figures",
)
"""Files and folders that a run writes beside spec.toml."""

_SHAPES = {
    "stream.json": pydantic.TypeAdapter[Any](StreamInfo),
    "code.json": pydantic.TypeAdapter[Any](Code),
    "work.json": pydantic.TypeAdapter[Any](dict[str, dict[int, Work]]),
    "divergence.json": pydantic.TypeAdapter[Any](dict[str, dict[int, Divergence]]),
}
"""What each JSON file holds."""


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return os.path.isfile(folder / "spec.toml")  # noqa: PTH113 (no error for an impossible name)


def owner(path: Path) -> Path | None:
    """The run folder that a path lies in as a part of it other than spec.toml, or None."""
    for folder in path.parents[:3]:
        if is_run(folder) and os.path.isfile(folder / "stream.json"):  # noqa: PTH113
            return folder if path.relative_to(folder).parts[0] in (*FILES, *LOCKS) else None
    return None


def load(folder: Path) -> Stored:
    """Reads a run folder. Raises FolderError when it is none, or a file in it is damaged."""
    if not is_run(folder) and (run := owner(folder)) is not None:
        raise FolderError(f"{folder} is a file of a run folder; give the folder, {run}.")
    if not is_run(folder):
        what = "does not exist"
        if folder.exists():
            what = "has no spec.toml" if folder.is_dir() else "is a file"
        raise FolderError(f"{folder} is not a run folder: it {what}; make one with `dpmcl run`.")
    try:
        spec = tomllib.loads((folder / "spec.toml").read_text("utf-8"))
        info = _json(folder / "stream.json")
        work = _read_work(folder / "work.json")
        diverged = _json(folder / "divergence.json", missing={})
        records = {
            name: replace(record, diverged=_of(record.test.seeds, diverged.get(name, {})))
            for name, record in _read_errors(
                folder / "errors.parquet", len(info.tasks), work
            ).items()
        }
        seeds = {name: record.test.seeds for name, record in records.items()}
        watched = monitored.read(folder / monitored.FILE, len(info.tasks), seeds)
        records = {
            name: replace(record, readings=watched.get(name)) for name, record in records.items()
        }
        order = {name: i for i, name in enumerate(dict(spec["methods"]))}
    except (
        ValueError, KeyError, TypeError, IndexError, AttributeError, OSError, RecursionError,
        pa.ArrowException,
    ) as error:  # fmt: skip
        reason = str(error).split("\n")[0]
        raise FolderError(
            f"{folder} is damaged: {reason}. Run the spec into a new folder."
        ) from None
    names = sorted(records, key=lambda name: (order.get(name, len(order)), name))
    return Stored(spec, info, {name: records[name] for name in names})


def load_code(folder: Path) -> Code:
    """Read what code a folder's results were made with; empty for a folder of version 0.1."""
    try:
        code: Code = _json(folder / "code.json", missing={})
    except (ValueError, OSError, RecursionError) as error:
        raise FolderError(
            f"{folder} is damaged: {error}. Start anew with --fresh, or run the spec into a new "
            "folder."
        ) from None
    return code


def save_start(folder: Path, spec: Mapping[str, Any], stream: StreamInfo, code: Code) -> None:
    """Write what is known before training: the code, the stream's names and the spec.

    Raises DataError for a name that UTF-8 cannot write: a file's name in another encoding.
    """
    text = tomli_w.dumps(dict(spec))
    for name in (stream.name, *stream.tasks, *stream.classes, *text.split("\n")):
        try:
            name.encode()
        except UnicodeEncodeError:
            raise DataError(f"'{name:.200}' cannot be stored as UTF-8; rename it.") from None
    write_text(folder / "code.json", json.dumps(code, indent=1) + "\n")
    known = {key: value for key, value in asdict(stream).items() if value is not None}
    write_text(folder / "stream.json", json.dumps(known, indent=1) + "\n")
    write_text(folder / "spec.toml", text)


def save_parameters(folder: Path, method: str, seeds: tuple[int, ...], theta: Theta) -> None:
    """One safetensors file a replica: "representation.0.weight" and so on."""
    for index, seed in enumerate(seeds):
        tensors = {
            f"{part}.{name}": tensor.detach().cpu().contiguous()
            for part, parameters in at(theta, index).items()
            for name, tensor in parameters.items()
        }
        with atomic(parameters_path(folder, method, seed)) as temporary:
            temporary.write_bytes(safetensors.torch.save(tensors))


def parameters_path(folder: Path, method: str, seed: int) -> Path:
    """Where a replica's trained parameters are."""
    return folder / "parameters" / method.replace(":", ".") / f"seed-{seed}.safetensors"


def save_records(folder: Path, records: Mapping[str, Record]) -> None:
    """Writes all records; errors.parquet last, since it says what has been run."""
    work = {
        name: {str(seed): asdict(w) for seed, w in sorted(record.work.items())}
        for name, record in sorted(records.items())
    }
    write_text(folder / "work.json", json.dumps(work, indent=1) + "\n")
    diverged = {
        name: {str(seed): _said(where) for seed, where in record.diverged.items()}
        for name, record in sorted(records.items())
        if record.diverged
    }
    if diverged or (folder / "divergence.json").exists():
        write_text(folder / "divergence.json", json.dumps(diverged, indent=1) + "\n")
    monitored.save(folder, records)
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    for name in sorted(records):
        for split, errors in sorted(records[name].errors.items()):
            for column, values in _long(name, split, errors).items():
                columns[column].append(values)
    arrays = [pa.array(np.concatenate(columns[c]), type=t) for c, t in _COLUMNS.items()]
    with atomic(folder / "errors.parquet") as temporary:
        pq.write_table(pa.table(arrays, names=list(_COLUMNS)), temporary)


def _said(where: Divergence) -> dict[str, Any]:
    """A divergence as JSON; the usual cause goes without saying."""
    entry = where._asdict()
    return entry if where.cause == "cost" else {k: v for k, v in entry.items() if k != "cause"}


def add_environment(folder: Path, entry: Mapping[str, Any]) -> None:
    """Add to environment.json what computed the newest results.

    Seeds that were computed alike share an entry.
    """
    entries = environment(folder)
    for known in entries:
        if {**known, "seeds": [], "finished": ""} == {**entry, "seeds": [], "finished": ""}:
            known["seeds"] = sorted({*known["seeds"], *entry["seeds"]})
            known["finished"] = entry["finished"]
            break
    else:
        entries.append(dict(entry))
    write_text(folder / "environment.json", json.dumps(entries, indent=1) + "\n")


def environment(folder: Path) -> list[Any]:
    """Return the entries of environment.json; none where it cannot be read."""
    try:
        entries = json.loads((folder / "environment.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return []
    return entries if isinstance(entries, list) else []


def _long(method: str, split: str, errors: Errors) -> dict[str, np.ndarray]:
    """The error tensor as columns, a row for each value that was evaluated."""
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


def _read_errors(path: Path, tasks: int, work: dict[str, dict[int, Work]]) -> dict[str, Record]:
    if not path.exists():
        return {}
    column = _columns(path, tasks)
    records: dict[str, Record] = {}
    for method in sorted(set(column["method"])):
        errors = {}
        mine = column["method"] == method
        for split in sorted(set(column["split"][mine])):
            here = mine & (column["split"] == split)
            if tasks > here.sum():  # before any room is made for them
                raise ValueError(f"errors.parquet has too few rows for {tasks} tasks")
            seeds, replica = np.unique(column["seed"][here], return_inverse=True)
            values = np.full((len(seeds), 1 + tasks, tasks), np.nan)
            examples = np.zeros((len(seeds), tasks), dtype=np.int64)
            after, task = column["after"][here], column["task"][here]
            values[replica, after + 1, task] = column["error"][here]
            examples[replica, task] = column["examples"][here]
            errors[split] = Errors(tuple(int(s) for s in seeds), values, examples)
        if not method or "test" not in errors:
            raise ValueError(f"errors.parquet has no test errors of method '{method}'")
        records[method] = Record(errors, _of(errors["test"].seeds, work.get(method, {})))
    return records


def _of(seeds: tuple[int, ...], table: Mapping[int, Any]) -> dict[int, Any]:
    """What a file says of seeds that have results; a crash may have left it ahead of them."""
    return {seed: table[seed] for seed in seeds if seed in table}


def _columns(path: Path, tasks: int) -> dict[str, Any]:
    """Every column of errors.parquet, of its type and within its range."""
    with pq.ParquetFile(_file(path)) as file:  # `read_table` takes folders named a=1 for columns
        table = file.read()
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


def _read_work(path: Path) -> dict[str, dict[int, Work]]:
    work: dict[str, dict[int, Work]] = _json(path, missing={})
    for spent in (
        number for seeds in work.values() for w in seeds.values() for number in vars(w).values()
    ):
        if not 0 <= spent < 2**63:
            raise ValueError(f"{path.name} has a number out of range")
    return work


def _json(path: Path, missing: Any = None) -> Any:
    """What a JSON file holds, of the shape that it must have. missing: what stands for no file."""
    if missing is not None and not path.exists():
        return missing
    try:
        return _SHAPES[path.name].validate_json(_file(path).read_bytes())
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = "".join(f"[{part!r:.40}]" for part in first["loc"])
        raise ValueError(f"{path.name}{place}: {first['msg']}") from None


def _file(path: Path) -> Path:
    """The path, if it is of a file: a pipe would never end."""
    if not path.is_file():
        raise ValueError(f"{path.name} is {'no file' if path.exists() else 'missing'}")
    return path
