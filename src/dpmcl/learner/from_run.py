"""A learner that continues from a replica of a finished run."""

from collections.abc import Mapping
from dataclasses import replace

import safetensors
import torch
from safetensors.torch import load, save
from torch import Tensor

from dpmcl import plugins
from dpmcl.core.gradients import Work
from dpmcl.core.memory import Memory
from dpmcl.core.precision import arithmetic
from dpmcl.core.tree import contiguous_copies
from dpmcl.exceptions import FolderError, SpecError, reason
from dpmcl.learner.config import Config
from dpmcl.learner.inputs import Inputs
from dpmcl.learner.knowledge import Form
from dpmcl.learner.labels import LabelMap, labels_of_names
from dpmcl.learner.learner import Learner
from dpmcl.learner.network import Network
from dpmcl.learner.packing import Packed, unpack
from dpmcl.results.store import StreamInfo
from dpmcl.streams.table import Table
from dpmcl.training.job import read_stream, scaled_and_split
from dpmcl.training.last_state import held_rows, with_slot_positions
from dpmcl.training.spec import Spec


@arithmetic(None)
def learner_of_run(
    spec: Spec, method: str, seed: int, *, content: bytes, info: StreamInfo
) -> Learner:
    """Return a learner that continues from a replica of a run.

    Args:
        spec: Spec of the run.
        method: Name of the method in the spec.
        seed: Seed of the replica.
        content: State of the replica after the last task, as safetensors (`store.load_state`).
        info: Description of the run's data.

    Raises:
        SpecError: A learner cannot continue from such a run.
        FolderError: The state is damaged, or the data are needed and have changed.
    """
    if spec.precision is not None:
        raise SpecError(
            "A learner computes in full precision; it cannot go on from a run with `precision`."
        )
    where = f"The state of '{method}' with seed {seed}"
    try:
        tensors = load(content)
        form = _form(spec, info, tensors)
        if tensors["memory.train.position"].numel() and not len(tensors["held.x"]):
            tensors |= _memory_rows(spec, seed, info.digest, tensors)
        memory = spec.methods[method].memory
        tensors = {name: _padded(name, leaf, memory) for name, leaf in tensors.items()}
        rows, outputs = int(tensors["rows"]), len(tensors["first_task"])
    except (LookupError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        if isinstance(error, FolderError | SpecError):
            raise
        raise FolderError(f"{where} is of another form ({reason(error)}).") from None
    config = _config(spec, method, seed, form)
    state = Packed(
        form=form,
        features=False,
        outputs=outputs,
        chunks=len(info.tasks),
        rows=rows,
        work=Work(),
        memory=True,
        groups=(),
        held_out=0,
    )
    return Learner._from_knowledge(config, unpack(where, state, save(tensors), config))


def _config(spec: Spec, name: str, seed: int, form: Form) -> Config:
    """Return the arguments of a learner that continues from a run."""
    method = spec.methods[name]
    ours = plugins.is_ours("network", spec.network_name) and spec.network_name != "python"
    table = {"name": spec.network_name, **spec.network.to_table()} if ours else {}
    return Config(
        method=method,
        network=Network(spec.network.build, spec.network_name, table),
        seed=seed,
        kind=form.kind,
        scale=form.scale,
        validation=0.25 if method.trains_on_validation else None,
        dtype=spec.dtype,
        device="cpu",
        engine="looped",
    )


def _form(spec: Spec, info: StreamInfo, tensors: Mapping[str, Tensor]) -> Form:
    """Return the form of the run's rows."""
    x, outputs = tensors["held.x"], len(tensors["first_task"])
    regression = info.kind == "regression"
    return Form(
        inputs=Inputs(tuple(x.shape[1:]), x.dtype == torch.uint8, info.fields),
        kind="regression" if regression else "classification",
        labels=LabelMap() if regression else labels_of_names(info.classes),
        flat=outputs == 1,
        width=outputs if regression else 1,
        scale="scaled" in tensors,
        target=spec.stream.target if isinstance(spec.stream, Table) else "",
    )


def _memory_rows(
    spec: Spec, seed: int, digest: str, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Read the rows of a memory from the data, for a memory too large to be stored in the state."""
    stream = read_stream(spec, (seed,))
    if spec.stream.shared and digest and replace(stream, scale=None).digest() != digest:
        raise FolderError(
            "The data of this run have changed, and its memory, which is too long to be kept in "
            "the folder, holds rows of them."
        )
    stream, splits = scaled_and_split(spec, stream, (seed,))
    memories = {}
    for name in ("train", "validation"):
        if f"memory.{name}.position" in tensors:
            memory = Memory(
                tensors[f"memory.{name}.position"],
                tensors[f"memory.{name}.filled"],
                tensors[f"memory.{name}.seen"],
            )
            memories[name] = memory
            rows = splits.named(name).row.shape[1]
            if memory.position.numel() and not 0 <= int(memory.position.max()) < rows:
                raise ValueError("the memory holds other rows")
    slots = {
        f"memory.{name}.position": memory.position
        for name, memory in with_slot_positions(memories).items()
    }
    return contiguous_copies(held_rows(stream, splits, memories).tensors | slots)


def _padded(name: str, leaf: Tensor, capacity: int) -> Tensor:
    """Return a tensor with zeros for the empty slots, if it has an entry for each memory slot."""
    if not name.startswith(("memory.", "held.row.")) or leaf.dim() < 2:
        return leaf
    empty = leaf.new_zeros(len(leaf), max(capacity - leaf.shape[1], 0), *leaf.shape[2:])
    return torch.cat([leaf, empty], dim=1)
