"""A learner in a folder: JSON and safetensors, from which it goes on as if it had never stopped.

    learner.json         method, network, labels, columns, and the name and sum of the other file
    state-SUM.safetensors    parameters, optimiser, memory, scales

learner.json is replaced last, in one step, so a folder always holds one whole learner. What
somebody else's folder says is data: nothing that it names is imported.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import annotated_types as at
import pydantic
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from dpmcl import plugins
from dpmcl.core import keys, tree
from dpmcl.core.atomic import atomic, path_of, write_text
from dpmcl.core.choices import EngineName
from dpmcl.core.cost import RowCost
from dpmcl.core.gradients import Work
from dpmcl.core.memory import Memories, Memory
from dpmcl.core.settings import NonNegative, Positive
from dpmcl.core.tree import from_named, named_leaves, rebuilt, whole
from dpmcl.data.splits import Rows, Splits
from dpmcl.data.stream import Scale, Stream
from dpmcl.engine import device_of
from dpmcl.exceptions import FolderError, ModelError, SpecError, reason
from dpmcl.learner.inputs import Field, Inputs
from dpmcl.learner.knowledge import Config, Form, Knowledge, kept, resting, setup_of, with_body
from dpmcl.learner.labels import LabelMap
from dpmcl.learner.network import Network
from dpmcl.learner.pool import Group, Held, Part
from dpmcl.methods._method import Method, State
from dpmcl.training.memories import empty_memories
from dpmcl.training.state import Position, RunState

FILE = "learner.json"

_EXAMPLE_ROWS = 6
_TYPES = {"torch.uint8", "torch.bfloat16", "torch.float16", "torch.float32", "torch.float64"}
_NEAR = 1e-3  # of the largest answer; devices differ by less

Text = Annotated[str, at.MaxLen(100_000)]
Number = Literal[
    "", "str", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64",
]  # fmt: skip


class _Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")


class Labels(_Strict):
    """The label map."""

    names: tuple[Text, ...]
    family: Literal["", "strings", "whole numbers", "true/false"]
    dtype: Number
    fixed: bool


class _Field(_Strict):
    name: Text
    kind: Literal["numbers", "true/false", "categories"]
    categories: tuple[Text, ...]


class _Form(_Strict):
    shape: tuple[Positive, ...]
    images: bool
    fields: tuple[_Field, ...]
    kind: Literal["classification", "regression"]
    flat: bool
    scale: bool
    target: Text
    features: bool


class _Group(_Strict):
    first: NonNegative
    last: NonNegative
    then: float
    rows: Positive
    broken: tuple[Annotated[str, pydantic.Field(pattern="^[a-z]{1,20}$")], ...] | None = None


class _State(_Strict):
    """What a learner knows, beside its tensors."""

    form: _Form
    outputs: Positive
    chunks: Positive
    rows: NonNegative
    work: Work
    memory: bool
    groups: tuple[_Group, ...]
    held_out: NonNegative
    file: Annotated[str, pydantic.Field(pattern=r"^state-[0-9a-f]{16}\.safetensors$")]
    sum: Text


class About(_Strict):
    """Content of learner.json."""

    format: Literal[1] = 1
    method: dict[str, Any]
    network: dict[str, Any]
    seed: NonNegative
    replicas: Positive
    dtype: Literal["float32", "float64"]
    engine: EngineName
    kind: Literal["classification", "regression"] | None
    scale: bool | None
    validation: Annotated[float, at.Ge(0), at.Lt(1)]
    holdout: Annotated[float, at.Ge(0), at.Lt(1)]
    forgetting_limit: Annotated[float, at.Ge(0)] | None
    monitor: bool = False
    labels: Labels
    state: _State | None = None


def packed(about: About, known: Knowledge | None, *, memory: bool = True) -> tuple[About, bytes]:
    """Return what is said of a learner, and the bytes of its tensors.

    Args:
        about: What it was made with.
        known: What it knows; None for nothing.
        memory: Whether the rows of its memory are among the tensors.
    """
    if known is None:
        return about, b""
    content, form = save(whole(_tensors(known, memory))), known.form
    total = hashlib.sha256(content).hexdigest()
    state = _State(
        form=_Form(
            shape=form.inputs.shape,
            images=form.inputs.images,
            fields=tuple(_Field(**asdict(field)) for field in form.inputs.fields),
            kind=form.kind,
            flat=form.flat,
            scale=form.scale,
            target=form.target,
            features=form.body is not None,
        ),
        outputs=known.setup.stream.outputs,
        chunks=known.chunks,
        rows=known.rows,
        work=known.run.work,
        memory=memory,
        groups=tuple(
            _Group(first=g.first, last=g.last, then=g.then, rows=len(g.x), broken=g.broken)
            for g in known.groups * memory
        ),
        held_out=known.held_out,
        file=f"state-{total[:16]}.safetensors",
        sum=total,
    )
    return about.model_copy(update={"state": state}), content


def write(path: Any, about: About, content: bytes) -> Path:
    """Write a learner to a folder, whole or not at all.

    Args:
        path: The folder; a learner that is in it is replaced.
        about: As `packed` returns it.
        content: The bytes of its tensors.

    Returns:
        The folder.

    Raises:
        FolderError: It cannot be written.
    """
    folder, file = path_of(path), "" if about.state is None else about.state.file
    if file:
        with atomic(folder / file) as temporary:
            temporary.write_bytes(content)
    write_text(folder / FILE, about.model_dump_json(indent=1) + "\n")
    for old in folder.glob("state-*.safetensors"):
        if old.name != file:
            with suppress(OSError):
                old.unlink()
    return folder


def read(path: Any) -> tuple[Path, About]:
    """Return what a folder says of the learner in it.

    Args:
        path: The folder.

    Raises:
        FolderError: There is no learner in it, or it is damaged.
    """
    folder = path_of(path)
    if not (folder / FILE).is_file():
        raise FolderError(f"{folder} holds no learner ({FILE} is missing); learner.save makes one.")
    try:
        return folder, About.model_validate_json((folder / FILE).read_bytes())
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:60]
        raise _damaged(folder, f"{FILE}, {where}: {first['msg']}") from None
    except (OSError, RecursionError) as error:
        raise _damaged(folder, reason(error)) from None


def cost_is_ours(about: About) -> bool:
    """Return True if a learner needs no cost of the user's.

    Args:
        about: What is said of it.
    """
    return "cost" not in about.method or plugins.is_ours("cost", about.method["cost"])


def method_of(about: About, brought: type[Method] | None, cost: RowCost | None = None) -> Method:
    """Return the method of a learner that was saved.

    Args:
        about: What its folder says.
        brought: The user's class, for a method that is not of the package.
        cost: The user's function, for a cost that is not of the package.

    Raises:
        SpecError: The method or the cost is the user's and was not brought, or a setting names
            something that is not of the package.
    """
    settings = dict(about.method)
    if cost_is_ours(about) != (cost is None):
        raise SpecError(
            "The cost of this learner is one of the package; leave out cost=."
            if cost is not None
            else "The cost of this learner is not one of the package, and nothing that a folder "
            "names is imported; bring it, as in Learner.load(path, cost=mine)."
        )
    settings |= {} if cost is None else {"cost": cost}
    name = settings.pop("name", None)
    if brought is not None:
        return brought.from_table(settings, f"Method {brought.__name__}:")
    if not plugins.is_ours("method", name):
        raise SpecError(
            "The method of this learner is not one of the package, and nothing that a folder names "
            "is imported; bring its class, as in Learner.load(path, method=Mine)."
        )
    parts = {"optimiser": [settings.get("optimiser")], "discount": [settings.get("discount")]}
    parts["option"] = list(settings.get("options") or ())
    for kind, entries in parts.items():
        for entry in entries:
            part = entry.get("name") if isinstance(entry, Mapping) else entry
            if part is not None and not plugins.is_ours(kind, part):
                raise SpecError(
                    f"The {kind} of this learner is not one of the package, and nothing that a "
                    "folder names is imported; bring the method with it."
                )
    method: Method = plugins.from_setting("method", {"name": name, **settings})
    return method


def content_of(folder: Path, about: About) -> bytes:
    """Return the bytes of the tensors in a folder; none for a learner that has learned nothing.

    Args:
        folder: The folder.
        about: What it says.

    Raises:
        FolderError: They are missing or damaged.
    """
    if about.state is None:
        return b""
    path = folder / about.state.file
    try:
        if not path.is_file():
            raise OSError(f"{path.name} is missing")
        content = path.read_bytes()
    except OSError as error:
        raise _damaged(folder, reason(error)) from None
    if hashlib.sha256(content).hexdigest() != about.state.sum:
        raise _damaged(folder, f"the sum of {path.name} does not fit")
    return content


def restored(where: Any, about: About, content: bytes, config: Config) -> Knowledge | None:
    """Return what a learner that was saved knows.

    Args:
        where: Its folder, for messages.
        about: What is said of it.
        content: The bytes of its tensors.
        config: What the learner is made with again.

    Raises:
        FolderError: The folder is damaged.
        ModelError: The network is not the one that was saved.
    """
    if about.state is None:
        return None
    try:
        tensors = load(content)
        _check_sizes(about.state, config.network, tensors, about.replicas)
        known = _knowledge(about, about.state, config, tensors)
        answers = _tried(known)
    except (LookupError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
        if isinstance(error, ModelError | SpecError):
            raise
        if not config.network.table:  # the sum of the tensors fits
            raise _another(reason(error)) from None
        raise _damaged(where, reason(error)) from None
    before = tensors.get("tried", answers).to(answers)
    near = _NEAR * float(1 + before.nan_to_num(0.0, 0.0, 0.0).abs().max())
    if not torch.allclose(answers, before, rtol=0.0, atol=near, equal_nan=True):
        raise _another("the same parameters give other answers in it")
    return known


def _tensors(known: Knowledge, memory: bool) -> dict[str, Tensor]:
    """Return all tensors of a learner, by a name in the file."""
    run, scale = known.run, known.setup.stream.scale
    out = named_leaves(run.replicas, "state") | {"seen": known.seen}
    if known.shown is not run.replicas:
        out |= named_leaves(known.shown, "shown")
    if known.setup.method.restarts:
        out |= named_leaves(known.setup.start, "start")
    if scale is not None:
        out |= {f"scale.{name}": leaf for name, leaf in scale._asdict().items()}
    out["tried"] = _tried(known)
    like = {"held.x": known.held.x, "held.y": known.held.y, "held.task": known.held.task}
    if not memory:  # of which the types are kept
        return out | {name: leaf[:0] for name, leaf in like.items()}
    if known.groups:
        like["holdout.x"] = torch.cat([group.x for group in known.groups])
        like["holdout.y"] = torch.cat([group.y for group in known.groups])
    for name, held in run.memories.items():
        out |= named_leaves(dict(held._asdict()), f"memory.{name}")
        if name in known.held.row:
            out[f"held.row.{name}"] = known.held.row[name]
    return out | like


def _tried(known: Knowledge) -> Tensor:
    """Return what the first replica answers to made-up inputs: float64 (rows, outputs).

    Of a network of the user's the parameters alone are stored, and no frozen or constant values.
    """
    model, state = known.setup.model, tree.at(known.shown, 0)
    x = kept(known.form, _made_up(known.form.inputs.shape)).to(model.device, model.dtype)
    with torch.no_grad():
        return model.holding(state.buffers).predict(state.theta, x).double().cpu()


def _check_sizes(
    state: _State, network: Network, tensors: Mapping[str, Tensor], replicas: int
) -> None:
    """Refuse settings of a network larger than the parameters, before room is made for it."""
    theta = [leaf for name, leaf in tensors.items() if name.startswith("state.theta.")]
    if not theta or any(leaf.shape[:1] != (replicas,) for leaf in theta):
        raise ValueError(f"the parameters are not of {replicas} replicas")
    if not network.table:
        return
    with torch.device("meta"):
        modules = network.build(state.form.shape, state.outputs)
    for part, module in zip(("representation", "prediction"), modules, strict=True):
        assert isinstance(module, nn.Module)
        for name, parameter in module.named_parameters():
            kept = tensors.get(f"state.theta.{part}.{name}")
            if kept is None or kept.shape[1:] != parameter.shape:
                raise ValueError(f"the parameters of {part}.{name} have another shape")


def _knowledge(
    about: About, state: _State, config: Config, tensors: Mapping[str, Tensor]
) -> Knowledge:
    """Return what a learner knows. Raises what tensors of another form make it raise."""
    device, form = device_of(config.device), _form(about, state)
    part = Part(tensors["held.x"].to(device), tensors["held.y"].to(device))
    if state.form.features:
        form = with_body(config, form, _made_up(form.inputs.shape).to(device))
    shape = form.inputs.shape if form.body is None else part.x.shape[1:]
    types = (str(part.x.dtype), part.x.shape[1:] == shape, part.x.dim() > 1)
    if types[0] not in _TYPES or not all(types[1:]) or part.y.dtype == torch.bool:
        raise ValueError("the rows have another form")
    if len(form.labels.names) > state.outputs:
        raise ValueError("there are more classes than outputs")
    example = _made_up(shape).to(device, config.dtype)
    stream, splits = resting(config, form, part, state.outputs)
    if form.scale:
        stream = replace(
            stream, scale=Scale(*(tensors[f"scale.{n}"].to(device) for n in Scale._fields))
        )
    setup = setup_of(config, form, (stream, splits), example)
    start = setup.start
    if setup.method.restarts:
        start = from_named(start, "start", tensors)
    replicas: State = from_named(setup.start, "state", tensors)
    shown = replicas
    if any(name.startswith("shown.") for name in tensors):
        shown = from_named(setup.start, "shown", tensors)
    setup = setup.starting(start)
    held = Held(part.x, part.y, tensors["held.task"].to(device))
    like = setup.over(*_one_row(stream, part, len(config.seeds)), ())
    memories = empty_memories(like, config.method.memory if not state.memory else 1)
    if state.memory:
        memories, row = _memories(memories, config, len(part.x), tensors)
        held = replace(held, row=row)
    seen = tensors["seen"].to(device)
    if seen.shape != (state.outputs,) or seen.dtype != torch.bool:
        raise ValueError("the classes seen have another form")
    return Knowledge(
        form=form,
        setup=setup,
        run=RunState(Position(), replicas, memories, state.work),
        held=held,
        shown=shown,
        seen=seen,
        chunks=state.chunks,
        rows=state.rows,
        groups=_groups(state, part, tensors),
        held_out=state.held_out,
    )


def _made_up(shape: Sequence[int]) -> Tensor:
    """Return inputs to check a network with, where no rows are at hand."""
    return keys.uniform(keys.derive(0, keys.Purpose.PROBE), (_EXAMPLE_ROWS, *shape))


def _one_row(stream: Stream, like: Part, replicas: int) -> tuple[Stream, Splits]:
    """Return a stream of one made-up row, which tells the shapes of a method's notes."""
    x = like.x.new_zeros(1, *like.x.shape[1:])
    y = like.y.new_zeros(1, *like.y.shape[1:])
    row = torch.zeros(replicas, 1, dtype=torch.int64, device=x.device)
    rows = Rows(row, row, torch.tensor([0, 1], device=x.device).expand(replicas, -1))
    return replace(stream, x=x, y=y, row=row, task=row), Splits(rows, rows, rows)


def _groups(state: _State, like: Part, tensors: Mapping[str, Tensor]) -> tuple[Group, ...]:
    """Return the rows that were held out."""
    if not state.groups:
        return ()
    x, y = tensors["holdout.x"].to(like.x.device), tensors["holdout.y"].to(like.y.device)
    sizes = [group.rows for group in state.groups]
    if x.shape[1:] != like.x.shape[1:] or y.shape[1:] != like.y.shape[1:]:
        raise ValueError("the rows held out have another form")
    parts = zip(state.groups, x.split(sizes), y.split(sizes), strict=True)
    return tuple(Group(g.first, g.last, g.then, x_, y_, g.broken) for g, x_, y_ in parts)


def _memories(
    like: Memories, config: Config, rows: int, tensors: Mapping[str, Tensor]
) -> tuple[Memories, dict[str, Tensor]]:
    """Return the memories of a file, and the rows in their slots; `like` have one slot each."""
    memories, row, capacity = {}, {}, config.method.memory
    for name, one in like.items():
        device = one.position.device
        memories[name] = _memory(one, name, capacity, tensors)
        row[name] = tensors[f"held.row.{name}"].to(device)
        if row[name].shape != (len(config.seeds), capacity) or not _within(row[name], rows):
            raise ValueError("the memory has another form")
    return memories, row


def _memory(like: Memory, name: str, capacity: int, tensors: Mapping[str, Tensor]) -> Memory:
    """Return a memory of a file; `like` has one slot."""
    form = named_leaves(dict(like._asdict()), f"memory.{name}")
    values = []
    for key, leaf in form.items():
        value, shape = tensors[key].to(leaf.device), list(leaf.shape)
        if len(shape) > 1:
            shape[1] = capacity
        if list(value.shape) != shape or value.dtype != leaf.dtype:
            raise ValueError(f"{key} has another form")
        values.append(value)
    memory = Memory(**rebuilt(dict(like._asdict()), values))
    if not _within(memory.filled, capacity + 1) or not _within(memory.position, capacity):
        raise ValueError(f"memory.{name} holds more than it may")
    return memory


def _within(numbers: Tensor, end: int) -> bool:
    """Return True if whole numbers are from 0 to below `end`; a 0 is always fine."""
    if numbers.dtype != torch.int64 or not numbers.numel():
        return numbers.dtype == torch.int64
    return bool((numbers >= 0).all() and (numbers < max(end, 1)).all())


def _form(about: About, state: _State) -> Form:
    """Return what all chunks have in common."""
    form = state.form
    fields = tuple(Field(f.name, f.kind, f.categories) for f in form.fields)
    if fields and (sum(len(f.names) for f in fields),) != form.shape:
        raise ValueError("the columns have another number of inputs")
    return Form(
        inputs=Inputs(form.shape, form.images, fields),
        kind=form.kind,
        labels=LabelMap(**about.labels.model_dump()),
        flat=form.flat,
        scale=form.scale,
        target=form.target,
    )


def _another(why: str) -> ModelError:
    return ModelError(
        f"The network is not the one that was saved: {why}; bring that one, with the values that "
        "it had in frozen layers and buffers, and with the same before= and frozen=."
    )


def _damaged(folder: Any, why: str) -> FolderError:
    return FolderError(f"{folder} is damaged: {why}. Save the learner again.")
