"""Conversion of a learner's knowledge to JSON and named tensors, and back."""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any

import pydantic
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from dpmcl.core import fingerprint, keys, tree
from dpmcl.core.batch import Batch
from dpmcl.core.gradients import Work
from dpmcl.core.memory import Memories
from dpmcl.core.model import Model
from dpmcl.core.network_check import made_up_inputs
from dpmcl.core.row_check import is_near
from dpmcl.core.settings import NonNegative, Positive
from dpmcl.core.tree import contiguous_copies, from_named, named_leaves
from dpmcl.data.stream import Scale
from dpmcl.engine import device_of
from dpmcl.exceptions import FolderError, ModelError, SpecError, reason
from dpmcl.learner.config import Config
from dpmcl.learner.knowledge import (
    Form,
    Knowledge,
    empty_stream,
    setup_of,
    stored_inputs,
    with_body,
)
from dpmcl.learner.network import Network
from dpmcl.learner.pool import Examples, Group, chunk_stream
from dpmcl.methods._method import State
from dpmcl.training.last_state import HeldRows, tensors_of
from dpmcl.training.memories import empty_memories
from dpmcl.training.setup import Setup
from dpmcl.training.state import Position, RunState

_EXAMPLE_ROWS = 6
_HELD_ROWS = 16  # rows of the memory for which a loaded network is compared with the saved one
_TYPES = {"torch.uint8", "torch.bfloat16", "torch.float16", "torch.float32", "torch.float64"}
_NEAR = 1e-3  # relative tolerance; devices differ by less


class _Group(pydantic.BaseModel):
    """A `pool.Group`, with the number of its rows in place of their tensors."""

    first: NonNegative
    last: NonNegative
    rows: Positive
    broken: tuple[Annotated[str, pydantic.Field(pattern="^[a-z]{1,20}$")], ...] | None = None


class Packed(pydantic.BaseModel):
    """Knowledge of a learner without its tensors.

    Attributes:
        form, chunks, rows, groups, held_out: As for `Knowledge`.
        features: Whether rows are stored as features of a frozen representation.
        frozen: Fingerprint of the network's frozen parameters and constant buffers, which are not
            stored.
        outputs: Number of the network's outputs.
        work: Cost of the updates so far.
        memory: Whether the rows of the memory and those held out are among the tensors.
    """

    model_config = pydantic.ConfigDict(extra="forbid")

    form: Form
    features: bool
    frozen: str = ""
    outputs: Positive
    chunks: Positive
    rows: NonNegative
    work: Work
    memory: bool
    groups: tuple[_Group, ...]
    held_out: NonNegative


def pack(known: Knowledge, *, memory: bool) -> tuple[Packed, bytes]:
    """Return a learner's knowledge without its tensors, and the bytes of the tensors.

    Args:
        known: Knowledge of the learner.
        memory: Whether to include the rows of its memory and those held out.
    """
    state = Packed(
        form=known.form,
        features=known.form.body is not None,
        frozen=_fingerprint_of_frozen(known),
        outputs=known.setup.stream.outputs,
        chunks=known.chunks,
        rows=known.rows,
        work=known.run.work,
        memory=memory,
        groups=tuple(
            _Group(first=g.first, last=g.last, rows=len(g.x), broken=g.broken)
            for g in known.groups * memory
        ),
        held_out=known.held_out,
    )
    return state, save(contiguous_copies(_tensors(known, memory)))


def unpack(where: Any, state: Packed, content: bytes, config: Config) -> Knowledge:
    """Return the knowledge of a saved learner.

    Args:
        where: Folder of the learner, for messages.
        state: Knowledge without its tensors, as `pack` returned it.
        content: The bytes of its tensors.
        config: Arguments of the learner.

    Raises:
        FolderError: The folder is damaged.
        ModelError: The network is not the one that was saved.
        SpecError: The cost is not the one that was saved.
    """
    try:
        tensors = load(content)
        _check_sizes(state, config.network, tensors, config.replicas)
        known = _knowledge(state, config, tensors)
        answers, costs = _probe_answers(known)
        training = _probe_training(known)
    except (LookupError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        if isinstance(error, ModelError | SpecError):
            raise
        why = reason(error)
        if isinstance(error, KeyError):  # of a tensor's name
            why = f"{why} is not among what was saved"
        if not config.network.table:  # the checksum is right, so the user's network must be wrong
            raise _network_differs(why) from None
        raise damaged(where, why) from None
    if state.frozen not in ("", _fingerprint_of_frozen(known)):
        raise _network_differs("frozen parameters or buffers have other values in it")
    saved = tensors.get("answers", answers).to(answers)
    # Made-up inputs and the learner's rows may be of different sizes, and so may the answers.
    pairs = zip(*(each.tensor_split([_EXAMPLE_ROWS]) for each in (answers, saved)), strict=True)
    if not all(is_near(now, then, then, _NEAR) for now, then in pairs):
        raise _network_differs("the same parameters give other answers in it")
    for name, now in training.items():
        then = tensors.get(name, now)
        if not is_near(now, then, then, _NEAR):
            raise _network_differs("it trains in another way (dropout, momentum of BatchNorm)")
    saved_costs = tensors.get("cost", costs).to(costs)
    if not is_near(costs, saved_costs, saved_costs, _NEAR):
        raise SpecError(
            "The cost is not the one that was saved, since the same answers have another cost by "
            "it; bring that one."
        )
    return known


def damaged(folder: Any, why: str) -> FolderError:
    """Return the error for a folder that cannot be read.

    Args:
        folder: The folder.
        why: The reason, for the message.
    """
    return FolderError(f"{folder} is damaged: {why}. Save the learner again.")


def _tensors(known: Knowledge, memory: bool) -> dict[str, Tensor]:
    """Return all tensors of a learner, by their name in the file."""
    if not memory:  # empty tensors of rows are still written, for their shapes and types
        empty = replace(known.run, memories={})
        known = replace(known, run=empty, held=known.held.without_rows)
    answers, costs = _probe_answers(known)
    out = tensors_of(known) | {"answers": answers, "cost": costs} | _probe_training(known)
    if known.groups and memory:
        out["holdout.then"] = torch.cat([group.then for group in known.groups])
        out["holdout.x"] = torch.cat([group.x for group in known.groups])
        out["holdout.y"] = torch.cat([group.y for group in known.groups])
    return out


def _probe_answers(known: Knowledge) -> tuple[Tensor, Tensor]:
    """Return the first replica's outputs for some inputs, and what they cost, in float64.

    They reveal whether a user's network and cost are those that were saved: only parameters that
    are trained are stored, not code or constant values.

    Returns:
        Outputs (rows, outputs) for random inputs and stored rows, and the cost of 256 pairs of an
        output and a target: a class, 0, or the target of a stored row.

    Raises:
        ModelError: The network takes none of the inputs.
    """
    model, state = _first_replica(known)
    x, batch = _probe_rows(known)
    outputs, pair = [], torch.arange(256, device=model.device)
    with torch.no_grad():
        for inputs in filter(len, (x, batch.x)):
            with suppress(Exception):  # a network need not take made-up inputs
                outputs.append(model.predict(state.theta, inputs))
        if not outputs:
            raise ModelError(
                "A saved network is recognised by its answers, and this one answers neither to "
                "made-up inputs nor to rows of the memory; save it with memory=True, and load it "
                "with the network that was saved."
            )
        out = torch.cat(outputs)
        if known.form.kind == "regression":
            y = torch.cat([out.new_zeros(1, known.form.width), batch.y])
        else:
            y = torch.arange(len(known.form.labels.names), device=model.device)
        costs = model.losses(out[pair % len(out)], y[pair * len(y) // 256])
    return out.double().cpu(), costs.double().cpu()


def _probe_training(known: Knowledge) -> dict[str, Tensor]:
    """Return the outputs and the running statistics of a training pass, in float64.

    They reveal another probability of dropout or momentum of BatchNorm. There are none if layers
    draw from PyTorch's generators, which differ from device to device.
    """
    model, state = _first_replica(known)
    x, batch = _probe_rows(known)
    x = batch.x if len(batch.x) else x
    w, key = x.new_ones(len(x)), keys.derive(0, keys.Purpose.PROBE).to(model.device)
    out: dict[str, Any] = {}
    if not any(part.draws for part in model.parts.values()):
        with torch.no_grad(), suppress(Exception):  # a network need not take made-up inputs
            out["outputs"] = model.predict(state.theta, x, key, w=w)
            out["statistics"] = model.moved(state.theta, x, w, key)
    return {name: leaf.double().cpu() for name, leaf in named_leaves(out, "training").items()}


def _first_replica(known: Knowledge) -> tuple[Model, State]:
    """Return the network with the running statistics of the first replica, and its state."""
    state = tree.at(known.evaluated, 0)
    return known.setup.model.holding(state.buffers), state


def _probe_rows(known: Knowledge) -> tuple[Tensor, Batch]:
    """Return made-up inputs, and some stored rows, to try a network with."""
    model, rows = known.setup.model, len(known.held.x)
    probe = made_up_inputs(_EXAMPLE_ROWS, known.form.inputs.shape)
    x = stored_inputs(known.form, probe).to(model.device, model.dtype)
    tried = min(rows, _HELD_ROWS)
    row = torch.arange(tried, device=model.device) * rows // max(tried, 1)
    held = replace(known.setup.stream, x=known.held.x, y=known.held.y)
    return x, held.batch(row, row >= 0, row * 0, model.dtype, replica=0)


def _fingerprint_of_frozen(known: Knowledge) -> str:
    """Return the fingerprint of frozen parameters and constant buffers; empty if there are none."""
    out, any_frozen = hashlib.sha256(), False
    for model in filter(None, (known.setup.model, known.form.body)):
        for label, part in model.parts.items():
            module = part.evaluation
            for name, value in [*module.named_parameters(label), *module.named_buffers(label)]:
                if name.removeprefix(f"{label}.") not in {**part.parameters, **part.keyed}:
                    any_frozen = True
                    out.update(name.encode())
                    fingerprint.add(out, value)
    return out.hexdigest() if any_frozen else ""


def _check_sizes(
    state: Packed, network: Network, tensors: Mapping[str, Tensor], replicas: int
) -> None:
    """Check the parameters' shapes against the network's settings before memory is allocated."""
    theta = [leaf for name, leaf in tensors.items() if name.startswith("state.theta.")]
    if not theta or any(leaf.shape[:1] != (replicas,) for leaf in theta):
        raise ValueError(f"the parameters are not of {replicas} replicas")
    if not network.table:
        return
    with torch.device("meta"):
        modules = network.build(state.form.inputs.shape, state.outputs)
    for part, module in zip(("representation", "prediction"), modules, strict=True):
        assert isinstance(module, nn.Module)
        for name, parameter in module.named_parameters():
            leaf = tensors.get(f"state.theta.{part}.{name}")
            if leaf is None or leaf.shape[1:] != parameter.shape:
                raise ValueError(f"the parameters of {part}.{name} have another shape")


def _knowledge(state: Packed, config: Config, tensors: Mapping[str, Tensor]) -> Knowledge:
    """Return the knowledge made of its tensors; any error raised means that they do not fit."""
    device, form = device_of(config.device), state.form
    if form.inputs.fields and (len(form.inputs.columns),) != form.inputs.shape:
        raise ValueError("the columns have another number of inputs")
    examples = Examples(tensors["held.x"].to(device), tensors["held.y"].to(device))
    if state.features:
        form = with_body(config, form, made_up_inputs(_EXAMPLE_ROWS, form.inputs.shape).to(device))
    shape = form.inputs.shape if form.body is None else examples.x.shape[1:]
    fits = (
        examples.x.dim() > 1 and examples.x.shape[1:] == shape and str(examples.x.dtype) in _TYPES
    )
    if not fits or examples.y.dtype == torch.bool:
        raise ValueError("the rows have another form")
    if len(form.labels.names) > state.outputs:
        raise ValueError("there are more classes than outputs")
    stream, splits = empty_stream(config, form, examples, state.outputs)
    if form.scale:
        scale = Scale(*(tensors[f"scale.{name}"].to(device) for name in Scale._fields))
        scaled = from_named(form.inputs.numeric.to(device), "scaled", tensors)
        stream = replace(stream, scale=scale, scaled=scaled)
    example = made_up_inputs(_EXAMPLE_ROWS, shape).to(device, config.floats)
    if len(examples.x):  # a network need not take made-up inputs
        rows = torch.arange(len(examples.x), device=device)[None]
        example = replace(stream, x=examples.x, y=examples.y, row=rows).example(config.floats)
    setup = setup_of(config, form, (stream, splits), example)
    like = setup.start
    if setup.method.restarts:
        setup = setup.with_start(from_named(like, "start", tensors))
    replicas: State = from_named(like, "state", tensors)
    separate = any(name.startswith("shown.") for name in tensors)
    memories, row = _memories(setup, examples, config, tensors if state.memory else None)
    return Knowledge(
        form=form,
        setup=setup,
        run=RunState(Position(), replicas, memories, state.work),
        held=HeldRows(examples.x, examples.y, tensors["held.task"].to(device), row),
        evaluated=from_named(like, "shown", tensors) if separate else replicas,
        first_task=_first_task(state, tensors).to(device),
        chunks=state.chunks,
        rows=state.rows,
        groups=_groups(state, examples, tensors),
        held_out=state.held_out,
    )


def _first_task(state: Packed, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the number of the chunk in which the class of each output first arrived."""
    like = torch.zeros(state.outputs, dtype=torch.int64)
    first_task: Tensor = from_named(like, "first_task", tensors)
    if not ((first_task >= -1) & (first_task < state.chunks)).all():
        raise ValueError("classes arrived with chunks that were not learned")
    return first_task


def _groups(state: Packed, like: Examples, tensors: Mapping[str, Tensor]) -> tuple[Group, ...]:
    """Return the rows held out, by group of chunks."""
    if not state.groups:
        return ()
    x, y = tensors["holdout.x"].to(like.x.device), tensors["holdout.y"].to(like.y.device)
    then = tensors["holdout.then"]
    sizes = [group.rows for group in state.groups]
    if x.shape[1:] != like.x.shape[1:] or y.shape[1:] != like.y.shape[1:]:
        raise ValueError("the rows held out have another form")
    parts = zip(state.groups, *(rows.split(sizes) for rows in (then, x, y)), strict=True)
    return tuple(Group(g.first, g.last, t, x_, y_, g.broken) for g, t, x_, y_ in parts)


def _memories(
    setup: Setup, examples: Examples, config: Config, tensors: Mapping[str, Tensor] | None
) -> tuple[Memories, dict[str, Tensor]]:
    """Return the memories and the row in each of their slots; empty memories without tensors."""
    capacity, replicas = config.method.memory, config.replicas
    if tensors is not None and tensors["memory.train.position"].shape != (replicas, capacity):
        raise ValueError("the memory is of another length")  # checked before it is allocated
    one_row = Examples(*(rows.new_zeros(1, *rows.shape[1:]) for rows in examples))
    chunk = {"train": one_row, "validation": one_row}  # for the shapes of a method's notes
    rows = chunk_stream(setup.stream, None, chunk, number=0, replicas=replicas)
    like = setup.with_rows(*rows, ())
    memories, row = dict(empty_memories(like, capacity)), {}
    if tensors is None:
        return memories, {}
    for name, empty in memories.items():
        memory = memories[name] = from_named(empty, f"memory.{name}", tensors)
        row[name] = from_named(empty.position, f"held.row.{name}", tensors)
        limits = (
            (memory.filled, capacity + 1),
            (memory.position, capacity),
            (row[name], len(examples.x)),
        )
        if not all(_in_range(numbers, end) for numbers, end in limits):
            raise ValueError(f"memory.{name} holds more than it may")
    return memories, row


def _in_range(numbers: Tensor, end: int) -> bool:
    """Return True if integers are at least 0 and below `end`; 0 is always allowed."""
    return bool((numbers >= 0).all() and (numbers < max(end, 1)).all())


def _network_differs(why: str) -> ModelError:
    """Return the error for a network that is not the one saved."""
    return ModelError(
        f"The network is not the one that was saved: {why}; bring that one, with the values that "
        "it had in frozen layers and buffers, and with the same before= and frozen=."
    )
