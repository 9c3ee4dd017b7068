"""Checkpoints: the complete state of a job, from which it resumes as if it had never stopped.

Every draw comes from a key, so nothing but the `RunState` is needed. A checkpoint is a safetensors
file with a SHA-256 sum of its content. The last two are kept, and damaged ones are skipped.
"""

import hashlib
import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dpmcl.core import fingerprint
from dpmcl.core.atomic import atomic
from dpmcl.core.gradients import Work
from dpmcl.core.settings import NonNegative
from dpmcl.core.tree import contiguous_copies, leaves, rebuilt
from dpmcl.exceptions import FolderError, printable, reason
from dpmcl.methods._method import State
from dpmcl.results.record import Divergence, folder_name
from dpmcl.training.state import Position, RunState

_LOG = logging.getLogger("dpmcl")

KEPT = 2
"""Number of checkpoints of a job that stay on disk."""

_ERRORS = "errors."


@dataclass(frozen=True)
class Origin:
    """The job, the data and the software that a checkpoint was written with.

    Only a job of the same method, seeds and data can resume from it.

    Attributes:
        method: Name of the method in the spec.
        seeds: Seeds of the job.
        digest: Fingerprint of the data.
        engine, device, torch, dpmcl: With others a job can resume too, and gives the same numbers
            up to rounding, unless another version of dpmcl trains in another way.
    """

    method: str
    seeds: tuple[int, ...]
    digest: str
    engine: str
    device: str
    torch: str = str(torch.__version__)
    dpmcl: str = version("dpmcl")


class _About(pydantic.BaseModel):
    """The description in a checkpoint, validated when it is read: the file may be anything."""

    model_config = pydantic.ConfigDict(extra="forbid")

    format: Literal[2]
    origin: Origin
    position: Position
    work: Work
    diverged: dict[NonNegative, Divergence]


class Checkpoints:
    """The checkpoints of one job in a run folder.

    Args:
        root: The run folder.
        origin: The job, and the data and the software that checkpoints are written with.
    """

    def __init__(self, root: Path, origin: Origin) -> None:
        self._root, self.origin = root, origin
        self._folder = job_folder(root, origin.method, origin.seeds)

    def save(self, run: RunState) -> None:
        """Write a checkpoint atomically, and remove all but the last two.

        Args:
            run: The state to save.

        Raises:
            FolderError: The checkpoint cannot be written, or the run folder was removed.
        """
        self.refuse_removed()
        tensors = _tensors(run)
        about = _About(
            format=2,
            origin=self.origin,
            position=run.position,
            work=run.work,
            diverged=dict(run.diverged),
        )
        text = about.model_dump_json()
        number = max(map(_number, self._names()), default=0) + 1
        with self._writing(f"{number:08d}.safetensors") as temporary:
            try:
                save_file(tensors, temporary, {"about": text, "sum": _sum(text, tensors)})
            except SafetensorError as error:  # what safetensors raises when the disk is full
                raise OSError(reason(error)) from None
        for name in self._names()[:-KEPT]:
            self._remove(name)

    def newest(self) -> "Saved | None":
        """Return the newest intact checkpoint, or None. Log a warning for each damaged one."""
        for name in reversed(self._names()):
            try:
                with self._reading(name) as path:
                    return _read(path, f"{self._folder}/{name}")
            except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
                why = f"{self._folder}/{name} is damaged ({reason(error)}); the one before it is "
                _LOG.warning(printable(f"{why}used, if any."))
        return None

    def clear(self) -> None:
        """Remove all checkpoints of the job."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):  # the folders may hold checkpoints of other jobs
            self._folder.parent.rmdir()
            self._folder.parent.parent.rmdir()

    def refuse_removed(self) -> None:
        """Raise FolderError if the run folder was removed."""
        refuse_removed(self._root)

    def _names(self) -> list[str]:
        """Return the names of the checkpoints, oldest first."""
        return checkpoint_names(
            path.name for path in self._folder.glob("*.safetensors") if path.is_file()
        )

    def _writing(self, name: str) -> AbstractContextManager[Path]:
        """Return a context manager that yields the path to which a checkpoint is written."""
        return atomic(self._folder / name)

    def _reading(self, name: str) -> AbstractContextManager[Path]:
        """Return a context manager that yields the path from which a checkpoint is read."""
        return nullcontext(self._folder / name)

    def _remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)


def checkpoint_names(names: Iterable[str]) -> list[str]:
    """Return the names of checkpoints among the names of files, oldest first.

    Args:
        names: Names of files.
    """
    return sorted((name for name in names if _number(name) > 0), key=_number)


def checkpoint_folder(root: Path, method: str) -> Path:
    """Return the folder of a method's checkpoints in a run folder.

    Args:
        root: The run folder.
        method: Name of the method in the spec.
    """
    return root / "checkpoints" / folder_name(method)


def job_folder(root: Path, method: str, seeds: Sequence[int]) -> Path:
    """Return the folder of a job's checkpoints in a run folder; its first and last seed name it.

    Args:
        root: The run folder.
        method: Name of the method in the spec.
        seeds: Seeds of the job.
    """
    return checkpoint_folder(root, method) / f"{seeds[0]}-{seeds[-1]}"


def refuse_removed(root: Path) -> None:
    """Raise FolderError if a run folder was removed: further files would make an incomplete one.

    Args:
        root: The run folder.
    """
    if not (root / "spec.toml").is_file():
        raise FolderError(
            f"{root} was removed while a run was writing to it, or this machine does not see it; "
            "run the spec again."
        )


def _number(name: str) -> int:
    stem = name.removesuffix(".safetensors")
    return int(stem) if stem.isascii() and stem.isdigit() else 0


def _tensors(run: RunState) -> dict[str, Tensor]:
    """Return the tensors of a state by their names in the file; columns of NaN are left out."""
    trees = {"replicas": tuple(run.replicas), "memories": run.memories}
    out = {
        f"{name}.{i}": leaf for name, tree in trees.items() for i, leaf in enumerate(leaves(tree))
    }
    for name, values in run.values.items():
        if name.startswith(_ERRORS):  # for long streams these are mostly NaN
            values = values.reshape(len(values), -1)
            columns = np.flatnonzero(~np.isnan(values).all(0))
            out[f"columns.{name}"], values = torch.from_numpy(columns), values[:, columns]
        out[f"values.{name}"] = torch.from_numpy(values)
    return contiguous_copies(out)


@dataclass(frozen=True)
class Saved:
    """Content of a checkpoint file.

    Attributes:
        name: Path of the file, for messages.
        about: Description of the checkpoint.
        tensors: Tensors by name.
    """

    name: str
    about: _About
    tensors: Mapping[str, Tensor]

    def state(self, like: RunState, tasks: int) -> RunState | None:
        """Return the state in the checkpoint; None, with a warning, if it does not fit the job.

        Args:
            like: A state of the job, whose trees have the structure, shapes and dtypes to match.
            tasks: Number of tasks in the stream.
        """
        try:
            return _state(self.about, self.tensors, like, tasks)
        except (LookupError, TypeError, ValueError, StopIteration, RuntimeError):
            _LOG.warning(printable(f"{self.name} is of another run or version; it is not used."))
            return None


def _state(about: _About, tensors: Mapping[str, Tensor], like: RunState, tasks: int) -> RunState:
    """Return the state in a checkpoint. Raise ValueError, among others, if it does not fit."""

    def tree(name: str, template: Any) -> Any:
        old = leaves(template)
        if f"{name}.{len(old)}" in tensors:
            raise ValueError(f"there are more leaves of {name} than {len(old)}")
        new = [tensors[f"{name}.{i}"] for i in range(len(old))]
        for a, b in zip(old, new, strict=True):
            if a.shape != b.shape or a.dtype != b.dtype:
                raise ValueError(f"a leaf of {name} has the shape {tuple(b.shape)}")
        return rebuilt(template, [b.to(a.device) for a, b in zip(old, new, strict=True)])

    replicas = len(leaves(like.replicas.theta)[0])
    values = {
        key.removeprefix("values."): tensor.numpy()
        for key, tensor in tensors.items()
        if key.startswith("values.")
    }
    for name in [name for name in values if name.startswith(_ERRORS)]:
        errors = np.full((replicas, (1 + tasks) * tasks), np.nan)
        errors[:, tensors[f"columns.{name}"].numpy()] = values[name]
        values[name] = errors.reshape(replicas, 1 + tasks, tasks)
    if about.position[0] > tasks or any(r >= replicas for r in about.diverged):
        raise ValueError("it is of a longer stream, or of more replicas")
    return RunState(
        about.position,
        State(*tree("replicas", tuple(like.replicas))),
        tree("memories", like.memories),
        about.work,
        about.diverged,
        values,
    )


def _read(path: Path, name: str) -> Saved:
    """Return the content of a checkpoint file. `newest` lists what a damaged file raises."""
    with safe_open(path, "pt") as file:
        meta = file.metadata() or {}
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    if meta["sum"] != _sum(meta["about"], tensors):
        raise ValueError("its checksum does not fit")
    return Saved(name, _About.model_validate_json(meta["about"]), tensors)


def _sum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the description and all tensors, in hex; safetensors has no sum."""
    out = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        out.update(name.encode())
        fingerprint.add(out, tensors[name])
    return out.hexdigest()
