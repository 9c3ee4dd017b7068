"""Checkpoints: where a run stands, whole and verified, so that it goes on as if never stopped.

Draws come from keys, so parameters, optimiser states, memory, errors so far and the position are
all there is. A checkpoint is one safetensors file, with a SHA-256 sum over all of it; the last two
are kept, and a damaged one is passed over.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pydantic
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dpmcl.core import fingerprint
from dpmcl.core.atomic import atomic
from dpmcl.core.gradients import Work
from dpmcl.core.memory import Memories
from dpmcl.core.tree import leaves, rebuilt
from dpmcl.exceptions import FolderError, reason
from dpmcl.methods._method import State
from dpmcl.results.record import Divergence

KEPT = 2
"""Checkpoints of a method that stay on disk."""

_FORMAT = 1
_Whole = Annotated[int, pydantic.Field(ge=0, lt=2**63)]


class Position(NamedTuple):
    """What comes next: the update `update` of a phase of a task, all from 0.

    (task, 0, 0) is a task that has not begun; later ones have their rows in memory.
    """

    task: int = 0
    phase: int = 0
    update: int = 0


@dataclass(frozen=True, eq=False)
class Snapshot:
    """All that a run needs to go on from a position.

    state, held: replicas first. values: the error tensors so far, by split. work: for each replica.
    diverged: by index of the replica. readings: what a monitor has taken, (replicas, readings,
    quantities), or None where nothing is watched; places: (task, phase, update) of each reading.
    """

    position: Position
    state: State
    held: Memories
    values: Mapping[str, np.ndarray]
    work: Work
    diverged: Mapping[int, Divergence] = field(default_factory=dict)
    readings: np.ndarray | None = None
    places: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class Origin:
    """What a checkpoint belongs to: it is of use to the same method, seeds and data alone.

    engine, device, torch: another one continues too, but equal to rounding only.
    """

    method: str
    seeds: tuple[int, ...]
    digest: str
    engine: str
    device: str
    torch: str = str(torch.__version__)


_Counted = Literal[
    "gradient_evaluations", "rows_backpropagated", "rows_head", "rows_forward", "flops"
]


class _About(pydantic.BaseModel):
    """The description in a checkpoint, checked when it is read: it may be anybody's."""

    model_config = pydantic.ConfigDict(extra="forbid")

    format: Literal[1]
    origin: Origin
    position: tuple[_Whole, _Whole, _Whole]
    work: dict[_Counted, _Whole]
    diverged: dict[
        _Whole, tuple[_Whole, _Whole, _Whole] | tuple[_Whole, _Whole, _Whole, Literal["cost"]]
    ]


class Checkpoints:
    """The checkpoints of one method in a run folder.

    root: the run folder. say: told when a damaged file is passed over.
    """

    def __init__(self, root: Path, method: str, say: Callable[[str], None]) -> None:
        self._root, self._say = root, say
        self._told: set[Path] = set()
        self._folder = root / "checkpoints" / method.replace(":", ".")

    def save(self, snapshot: Snapshot, origin: Origin) -> None:
        """Writes a checkpoint, whole or not at all, and removes what is older than the last two.

        Raises FolderError where it cannot be written, or the run folder is gone.
        """
        refuse_removed(self._root)
        tensors = _tensors(snapshot)
        about = {
            "format": _FORMAT,
            "origin": asdict(origin),
            "position": list(snapshot.position),
            "work": asdict(snapshot.work),
            "diverged": {
                str(r): list(d if d.cause == "cost" else d[:3])
                for r, d in snapshot.diverged.items()
            },
        }
        text = json.dumps(about, sort_keys=True)
        number = max(map(_number, self._folder.glob("*.safetensors")), default=0) + 1
        with atomic(self._folder / f"{number:08d}.safetensors") as temporary:
            try:
                save_file(tensors, temporary, {"about": text, "sum": _sum(text, tensors)})
            except SafetensorError as error:  # a full disk, to the library that writes
                raise OSError(reason(error)) from None
        for path in self._files()[:-KEPT]:
            path.unlink(missing_ok=True)

    def origin(self) -> Origin | None:
        """What the newest whole checkpoint belongs to; None where there is none."""
        for path in reversed(self._files()):
            found = _read(path)
            if not isinstance(found, str):
                return found[0].origin
            if path not in self._told:
                self._told.add(path)
                self._say(f"{path} is damaged ({found}); the checkpoint before it is used, if any.")
        return None

    def load(self, like: Snapshot) -> Snapshot | None:
        """The newest whole checkpoint. like: a snapshot of the same run, for the trees' form.

        None where there is none, or what it holds is not of that form.
        """
        for path in reversed(self._files()):
            found = _read(path)
            if isinstance(found, str):
                continue
            try:
                return _snapshot(*found, like)
            except (LookupError, TypeError, ValueError, StopIteration, RuntimeError):
                self._say(f"{path} is of another run or version; it is not used.")
        return None

    def clear(self) -> None:
        """Removes all checkpoints of the method."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):  # others may be in it
            self._folder.parent.rmdir()

    def _files(self) -> list[Path]:
        """Oldest first. A pipe or a folder of such a name is none."""
        found = [p for p in self._folder.glob("*.safetensors") if _number(p) > 0 and p.is_file()]
        return sorted(found, key=_number)


def refuse_removed(root: Path) -> None:
    """Raises FolderError where a run folder is gone: writing on would make half of one."""
    if not (root / "spec.toml").is_file():
        raise FolderError(f"{root} was removed while a run was writing to it; run the spec again.")


def _number(path: Path) -> int:
    return int(path.stem) if path.stem.isascii() and path.stem.isdigit() else 0


def _tensors(snapshot: Snapshot) -> dict[str, Tensor]:
    trees = {"state": tuple(snapshot.state), "held": snapshot.held}
    out = {
        f"{name}.{i}": leaf.detach().cpu()
        for name, tree in trees.items()
        for i, leaf in enumerate(leaves(tree))
    }
    for split, values in snapshot.values.items():
        place = np.flatnonzero(~np.isnan(values).all(0))
        out[f"errors.{split}.place"] = torch.from_numpy(place)
        out[f"errors.{split}.values"] = torch.from_numpy(values.reshape(len(values), -1)[:, place])
    if snapshot.readings is not None:
        out["readings"] = torch.from_numpy(snapshot.readings)
        out["readings.place"] = torch.tensor(snapshot.places, dtype=torch.int64).reshape(-1, 3)
    # Leaves may be views, or share memory (a start state), neither of which the format takes.
    whole = torch.contiguous_format
    return {name: tensor.clone(memory_format=whole) for name, tensor in out.items()}


def _snapshot(about: _About, tensors: Mapping[str, Tensor], like: Snapshot) -> Snapshot:
    def tree(name: str, form: Any) -> Any:
        old = leaves(form)
        if f"{name}.{len(old)}" in tensors:
            raise ValueError(f"there are more leaves of {name} than {len(old)}")
        new = [tensors[f"{name}.{i}"] for i in range(len(old))]
        for a, b in zip(old, new, strict=True):
            if a.shape != b.shape or a.dtype != b.dtype:
                raise ValueError(f"a leaf of {name} has the shape {tuple(b.shape)}")
        return rebuilt(form, [b.to(a.device) for a, b in zip(old, new, strict=True)])

    values: dict[str, np.ndarray] = {}
    for split, empty in like.values.items():
        flat = np.full_like(empty, np.nan).reshape(len(empty), -1)
        flat[:, tensors[f"errors.{split}.place"].numpy()] = tensors[
            f"errors.{split}.values"
        ].numpy()
        values[split] = flat.reshape(empty.shape)
    replicas, _, tasks = next(iter(values.values())).shape
    if about.position[0] > tasks or any(r >= replicas for r in about.diverged):
        raise ValueError("it is of a longer run, or one of more replicas")
    return Snapshot(
        Position(*about.position),
        State(*tree("state", tuple(like.state))),
        tree("held", like.held),
        values,
        Work(**about.work),
        {r: Divergence(*d) for r, d in about.diverged.items()},
        _readings(tensors, like),
        like.places,
    )


def _readings(tensors: Mapping[str, Tensor], like: Snapshot) -> np.ndarray | None:
    """The readings kept, at the places that are still read: what is watched may have changed."""
    kept, place, out = tensors.get("readings"), tensors.get("readings.place"), like.readings
    if kept is None or place is None or out is None:
        return out
    if kept.shape != (len(out), len(place), out.shape[2]):
        raise ValueError("its readings are of another form")
    out, at = out.copy(), {where: i for i, where in enumerate(like.places)}
    for i, (task, phase, update) in enumerate(place.tolist()):
        if (task, phase, update) in at:
            out[:, at[task, phase, update]] = kept[:, i].numpy()
    return out


def _read(path: Path) -> tuple[_About, dict[str, Tensor]] | str:
    """A checkpoint's description and tensors, or why it cannot be used."""
    try:
        with safe_open(path, "pt") as file:
            meta = file.metadata() or {}
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        if meta["sum"] != _sum(meta["about"], tensors):
            return "its checksum does not fit"
        return _About.model_validate_json(meta["about"]), tensors
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        return " ".join(str(error).split())[:120] or type(error).__name__


def _sum(text: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the description and every tensor, in hex: the format itself has no sum."""
    out = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        out.update(name.encode())
        fingerprint.add(out, tensors[name])
    return out.hexdigest()
