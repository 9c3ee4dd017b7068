"""The run folder: what is in it, how it is read, and how it grows.

    spec.toml            the complete spec; its methods and seeds are the last ones asked for
    errors.parquet       method, seed, after, task, split, error, examples: one row a value
    parameters/METHOD/seed-N.safetensors
    work.json            gradients and rows spent, by method and seed
    divergence.json      task, phase and update at which a replica was frozen, by method and seed
    checkpoints/METHOD/  where an unfinished method stands; gone once it is finished
    .lock                held while a process writes to the folder
    stream.json          kind, scenario, task names, the label map, a fingerprint of the data
    environment.json     versions, device, engine, commit of each run that added to it
    figures/

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
import safetensors.torch
import tomli_w

from dpmcl.atomic import atomic, write_text
from dpmcl.divergence import Divergence
from dpmcl.evaluation import Errors
from dpmcl.exceptions import FolderError
from dpmcl.gradients import Work
from dpmcl.model import Theta
from dpmcl.results.record import Record
from dpmcl.tree import at

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
    data, empty where each replica draws its own.
    """

    name: str
    kind: str
    tasks: tuple[str, ...]
    classes: tuple[str, ...]
    scenario: str = ""
    digest: str = ""


@dataclass(frozen=True, eq=False)
class Stored:
    """A run folder's content. spec: the table of spec.toml. records: by method."""

    spec: dict[str, Any]
    stream: StreamInfo
    records: dict[str, Record]


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return os.path.isfile(folder / "spec.toml")  # noqa: PTH113 (no error for an impossible name)


def load(folder: Path) -> Stored:
    """Reads a run folder. Raises FolderError when it is none, or a file in it is damaged."""
    if not is_run(folder):
        what = "has no spec.toml" if folder.is_dir() else "does not exist"
        raise FolderError(f"{folder} is not a run folder: it {what}; make one with `dpmcl run`.")
    try:
        spec = tomllib.loads((folder / "spec.toml").read_text("utf-8"))
        stream = json.loads((folder / "stream.json").read_text("utf-8"))
        info = StreamInfo(
            stream["name"],
            stream["kind"],
            tuple(stream["tasks"]),
            tuple(stream["classes"]),
            stream.get("scenario", ""),
            stream.get("digest", ""),
        )
        work = _read_work(folder / "work.json")
        diverged = _read_diverged(folder / "divergence.json")
        records = {
            name: replace(record, diverged=diverged.get(name, {}))
            for name, record in _read_errors(
                folder / "errors.parquet", len(info.tasks), work
            ).items()
        }
        order = {name: i for i, name in enumerate(dict(spec["methods"]))}
    except (
        ValueError, KeyError, TypeError, IndexError, AttributeError, OSError, pa.ArrowException
    ) as error:  # fmt: skip
        reason = str(error).split("\n")[0]
        raise FolderError(
            f"{folder} is damaged: {reason}. Run the spec into a new folder."
        ) from None
    names = sorted(records, key=lambda name: (order.get(name, len(order)), name))
    return Stored(spec, info, {name: records[name] for name in names})


def save_spec(folder: Path, spec: Mapping[str, Any], stream: StreamInfo) -> None:
    """Writes what is known before training: the spec and the stream's names."""
    write_text(folder / "stream.json", json.dumps(asdict(stream), indent=1) + "\n")
    write_text(folder / "spec.toml", tomli_w.dumps(dict(spec)))


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
        name: {str(seed): where._asdict() for seed, where in record.diverged.items()}
        for name, record in sorted(records.items())
        if record.diverged
    }
    if diverged or (folder / "divergence.json").exists():
        write_text(folder / "divergence.json", json.dumps(diverged, indent=1) + "\n")
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    for name in sorted(records):
        for split, errors in sorted(records[name].errors.items()):
            for column, values in _long(name, split, errors).items():
                columns[column].append(values)
    arrays = [pa.array(np.concatenate(columns[c]), type=t) for c, t in _COLUMNS.items()]
    with atomic(folder / "errors.parquet") as temporary:
        pq.write_table(pa.table(arrays, names=list(_COLUMNS)), temporary)


def add_environment(folder: Path, entry: Mapping[str, Any]) -> None:
    """Appends to environment.json what computed the newest results."""
    path = folder / "environment.json"
    try:
        entries = json.loads(path.read_text("utf-8")) if path.exists() else []
    except ValueError:
        entries = []
    kept = entries if isinstance(entries, list) else []
    write_text(path, json.dumps([*kept, dict(entry)], indent=1) + "\n")


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
    table = pq.read_table(path)
    column = {name: table[name].to_numpy() for name in _COLUMNS}
    records: dict[str, Record] = {}
    for method in sorted(set(column["method"])):
        errors = {}
        mine = column["method"] == method
        for split in sorted(set(column["split"][mine])):
            here = mine & (column["split"] == split)
            seeds, replica = np.unique(column["seed"][here], return_inverse=True)
            values = np.full((len(seeds), 1 + tasks, tasks), np.nan)
            examples = np.zeros((len(seeds), tasks), dtype=np.int64)
            after, task = column["after"][here], column["task"][here]
            values[replica, after + 1, task] = column["error"][here]
            examples[replica, task] = column["examples"][here]
            errors[split] = Errors(tuple(int(s) for s in seeds), values, examples)
        records[method] = Record(errors, work.get(method, {}))
    return records


def _read_diverged(path: Path) -> dict[str, dict[int, Divergence]]:
    if not path.exists():
        return {}
    content = json.loads(path.read_text("utf-8"))
    return {
        method: {int(seed): Divergence(**where) for seed, where in seeds.items()}
        for method, seeds in content.items()
    }


def _read_work(path: Path) -> dict[str, dict[int, Work]]:
    if not path.exists():
        return {}
    content = json.loads(path.read_text("utf-8"))
    return {m: {int(s): Work(**w) for s, w in seeds.items()} for m, seeds in content.items()}
