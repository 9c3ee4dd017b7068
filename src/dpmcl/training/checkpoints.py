"""Checkpoints: the state of a job, whole and verified, so that it goes on as if never stopped.

Every draw comes from a key, so nothing but the `RunState` is needed. A checkpoint is a safetensors
file, with a SHA-256 sum over all of it; the last two are kept, and a damaged one is passed over.
"""

import hashlib
import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
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
from dpmcl.core.tree import leaves, rebuilt, whole
from dpmcl.exceptions import FolderError, printable, reason
from dpmcl.methods._method import State
from dpmcl.results.record import Divergence
from dpmcl.training.state import Position, RunState

_LOG = logging.getLogger("dpmcl")

KEPT = 2
"""Checkpoints of a job that stay on disk."""

_ERRORS = "errors."


@dataclass(frozen=True)
class Origin:
    """Identity of a checkpoint: it is of use to the same method, seeds and data alone.

    Attributes:
        method: Its name in the spec.
        seeds: The job's.
        digest: Fingerprint of the data.
        engine, device, torch: Another one continues too, but equal to rounding only.
    """

    method: str
    seeds: tuple[int, ...]
    digest: str
    engine: str
    device: str
    torch: str = str(torch.__version__)


class _About(pydantic.BaseModel):
    """The description in a checkpoint, checked when it is read: it may be anybody's."""

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
        method: The job's method.
        seeds: The job's seeds.
    """

    def __init__(self, root: Path, method: str, seeds: Sequence[int]) -> None:
        self._root = root
        self._folder = folder_of(root, method) / job_folder(method, seeds)[1]

    def save(self, run: RunState, origin: Origin) -> None:
        """Write a checkpoint, whole or not at all, and remove what is older than the last two.

        Args:
            run: The state to save.
            origin: What it belongs to.

        Raises:
            FolderError: It cannot be written, or the run folder is gone.
        """
        self.refuse_removed()
        tensors = _tensors(run)
        about = _About(
            format=2,
            origin=origin,
            position=run.position,
            work=run.work,
            diverged=dict(run.diverged),
        )
        text = about.model_dump_json()
        number = max(map(_number, self._names()), default=0) + 1
        with self._writing(f"{number:08d}.safetensors") as temporary:
            try:
                save_file(tensors, temporary, {"about": text, "sum": _sum(text, tensors)})
            except SafetensorError as error:  # a full disk, to the library that writes
                raise OSError(reason(error)) from None
        for name in self._names()[:-KEPT]:
            self._remove(name)

    def newest(self) -> "Saved | None":
        """Return the newest whole checkpoint; None where there is none. Damaged ones are named."""
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
        with suppress(OSError):  # others may be in it
            self._folder.parent.rmdir()
            self._folder.parent.parent.rmdir()

    def refuse_removed(self) -> None:
        """Raise FolderError where the run folder is gone."""
        refuse_removed(self._root)

    def _names(self) -> list[str]:
        """Return the checkpoints' names, oldest first."""
        return in_order(path.name for path in self._folder.glob("*.safetensors") if path.is_file())

    def _writing(self, name: str) -> AbstractContextManager[Path]:
        """Return a block that writes a checkpoint."""
        return atomic(self._folder / name)

    def _reading(self, name: str) -> AbstractContextManager[Path]:
        """Return a block that reads a checkpoint."""
        return nullcontext(self._folder / name)

    def _remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)


def in_order(names: Iterable[str]) -> list[str]:
    """Return those of some names that are checkpoints', oldest first.

    Args:
        names: Of files.
    """
    return sorted((name for name in names if _number(name) > 0), key=_number)


def folder_of(root: Path, method: str) -> Path:
    """Return the folder of a method's checkpoints in a run folder.

    Args:
        root: The run folder.
        method: Name of the method in the spec.
    """
    return root / "checkpoints" / method.replace(":", ".")


def job_folder(method: str, seeds: Sequence[int]) -> tuple[str, str]:
    """Return a job's method, and the name of its folder: its first and last seed.

    Args:
        method: Name of the method in the spec.
        seeds: The job's.
    """
    return method, f"{seeds[0]}-{seeds[-1]}"


def refuse_removed(root: Path) -> None:
    """Raise FolderError where a run folder is gone: writing on would make half of one.

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
    """Return all tensors of a state by a name in the file; of values those that are not NaN."""
    trees = {"replicas": tuple(run.replicas), "memories": run.memories}
    out = {
        f"{name}.{i}": leaf for name, tree in trees.items() for i, leaf in enumerate(leaves(tree))
    }
    for name, values in run.values.items():
        if name.startswith(_ERRORS):  # long streams' are mostly NaN
            values = values.reshape(len(values), -1)
            columns = np.flatnonzero(~np.isnan(values).all(0))
            out[f"columns.{name}"], values = torch.from_numpy(columns), values[:, columns]
        out[f"values.{name}"] = torch.from_numpy(values)
    return whole(out)


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read.

    Attributes:
        name: Its file.
        about: What it says of itself.
        tensors: By name.
    """

    name: str
    about: _About
    tensors: Mapping[str, Tensor]

    @property
    def origin(self) -> Origin:
        """Return what it belongs to."""
        return self.about.origin

    def state(self, like: RunState, tasks: int) -> RunState | None:
        """Return the state that it holds; None where it has another form.

        Args:
            like: A state of the same job, for the form of its trees.
            tasks: Tasks in the stream.
        """
        try:
            return _state(self.about, self.tensors, like, tasks)
        except (LookupError, TypeError, ValueError, StopIteration, RuntimeError):
            _LOG.warning(printable(f"{self.name} is of another run or version; it is not used."))
            return None


def _state(about: _About, tensors: Mapping[str, Tensor], like: RunState, tasks: int) -> RunState:
    """Return the state that a checkpoint holds. Raises ValueError where it is of another form."""

    def tree(name: str, form: Any) -> Any:
        old = leaves(form)
        if f"{name}.{len(old)}" in tensors:
            raise ValueError(f"there are more leaves of {name} than {len(old)}")
        new = [tensors[f"{name}.{i}"] for i in range(len(old))]
        for a, b in zip(old, new, strict=True):
            if a.shape != b.shape or a.dtype != b.dtype:
                raise ValueError(f"a leaf of {name} has the shape {tuple(b.shape)}")
        return rebuilt(form, [b.to(a.device) for a, b in zip(old, new, strict=True)])

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
    """Return a checkpoint. Raises what a damaged one makes its readers raise."""
    with safe_open(path, "pt") as file:
        meta = file.metadata() or {}
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    if meta["sum"] != _sum(meta["about"], tensors):
        raise ValueError("its checksum does not fit")
    return Saved(name, _About.model_validate_json(meta["about"]), tensors)


def _sum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the description and every tensor, in hex: the format itself has no sum."""
    out = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        out.update(name.encode())
        fingerprint.add(out, tensors[name])
    return out.hexdigest()
