"""The knowledge of a learner, and how a chunk updates it: pure functions around `learn_task`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import pydantic
import torch
from torch import Tensor, nn

from dpmcl.core import keys
from dpmcl.core.model import Kind, Model
from dpmcl.core.part import Modules
from dpmcl.data.scaling import check_digits, fit_scale
from dpmcl.data.splits import Rows, Splits
from dpmcl.data.stream import Stream
from dpmcl.data.task_info import TaskInfo, task_infos
from dpmcl.engine import choose
from dpmcl.exceptions import DivergenceError, SpecError
from dpmcl.learner.config import Config
from dpmcl.learner.growth import check_answers, outputs_with_room, widened, widened_memories
from dpmcl.learner.inputs import Inputs
from dpmcl.learner.labels import LabelMap
from dpmcl.learner.pool import Examples, Group, chunk_stream
from dpmcl.methods._method import State
from dpmcl.optimisers.theorem import Theorem
from dpmcl.training.bytes_kept import all_task_draws
from dpmcl.training.checks import check
from dpmcl.training.divergence import FreezeNonFinite
from dpmcl.training.evaluation import evaluated_states
from dpmcl.training.last_state import HeldRows, LastState, held_rows, with_slot_positions
from dpmcl.training.loop import after_evaluation_phases, learn_task
from dpmcl.training.memories import empty_memories
from dpmcl.training.monitor import Monitor, MonitorSettings
from dpmcl.training.observer import Observer
from dpmcl.training.setup import Setup
from dpmcl.training.state import Position, RunState
from dpmcl.training.user_code import locating_errors

_DRIFT_CONDITIONS = ("rate", "inputs")
"""Conditions of Theorem 1 that depend on how rows move between tasks, unknown to a learner."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Form:
    """Form of the rows, the same for all chunks and fixed by the first one.

    Attributes:
        inputs: Form of the inputs.
        kind: "classification" or "regression".
        labels: Labels of the classes learned or declared so far; empty for regression.
        flat: Whether the targets of a regression have the shape (rows,).
        width: Number of values in a target of a regression.
        scale: Whether numeric inputs, and targets of a regression, are standardised by the first
            chunk.
        target: Name of a table's target column; empty if there is none.
        body: The network if its representation is frozen; rows are then stored as features. Else
            None.
    """

    inputs: Inputs
    kind: Kind
    labels: LabelMap
    flat: bool = True
    width: int = 1
    scale: bool = False
    target: str = ""
    body: Annotated[pydantic.InstanceOf[Model] | None, pydantic.Field(exclude=True)] = None

    @property
    def fixed(self) -> bool:
        """Return whether the number of the network's outputs is final."""
        return self.labels.fixed or self.kind == "regression"


@dataclass(frozen=True, eq=False, kw_only=True)
class Knowledge(LastState):
    """Everything that a learner has learned, after a chunk.

    Attributes:
        form: Form of the rows.
        setup: As for `LastState`, with a stream that has no rows.
        run, held, evaluated, first_task: As for `LastState`; for memories see
            `with_slot_positions`.
        chunks: Number of chunks learned.
        rows: Number of training rows learned.
        groups: Rows held out, by group of chunks.
        held_out: Number of rows held out of all chunks, including those no longer kept.
        broken: Conditions of Theorem 1 that were broken during the newest chunk; None if they were
            not checked.
    """

    form: Form
    chunks: int = 0
    rows: int = 0
    groups: tuple[Group, ...] = ()
    held_out: int = 0
    broken: tuple[str, ...] | None = None


def learn_chunk(
    config: Config, before: Knowledge | None, form: Form, chunk: Mapping[str, Examples]
) -> Knowledge:
    """Train on a chunk and return the learner's new knowledge.

    Args:
        config: Arguments of the learner.
        before: Knowledge before the chunk; None for the first chunk.
        form: Form of the rows, with the labels of this chunk.
        chunk: Rows of the chunk by split: "train", and "validation" if the method needs it.

    Raises:
        SpecError: The method needs something that a learner does not have, such as all past rows.
        ModelError: The network cannot be used, or cannot be widened.
        DivergenceError: Parameters are no longer finite.
    """
    known = before or _initial_knowledge(config, form, chunk)
    number = known.chunks
    like = replace(known.setup.stream, classes=form.labels.names)
    held = known.held if number else None
    stream, splits = chunk_stream(like, held, chunk, number=number, replicas=len(config.seeds))
    check_digits(stream, config.floats)
    known = _with_room(config, known, form, (stream, splits))
    stream = replace(stream, outputs=known.setup.stream.outputs)
    infos = task_infos_of(known, stream, splits)
    setup = known.setup.with_rows(stream, splits, infos)
    _check_method(setup)  # always: a learner made from a run starts after chunk 0
    if number == 0:
        check(setup)
    task = len(infos) - 1
    try:
        start = replace(known.run, position=Position(task))
        run, broken = _train(config, setup, start)
    except DivergenceError as error:
        raise DivergenceError(
            f"Parameters must stay finite, and they did not ({str(error).partition(';')[0]}); the "
            "learner is unchanged. Take smaller steps (lr=...), or scale the inputs (scale=True)."
        ) from None
    empty, no_rows = empty_stream(config, form, chunk["train"], stream.outputs)
    return replace(
        known,
        form=form,
        setup=setup.with_rows(
            replace(empty, scale=stream.scale, scaled=stream.scaled), no_rows, ()
        ),
        run=replace(run, memories=with_slot_positions(run.memories), values={}),
        held=held_rows(stream, splits, run.memories),
        evaluated=evaluated_states(setup, after_evaluation_phases(setup, run, task)),
        first_task=torch.where(infos[-1].new, number, known.first_task),
        chunks=number + 1,
        rows=infos[-1].rows_seen,
        broken=broken,
    )


def with_body(config: Config, form: Form, x: Tensor) -> Form:
    """Return the form with `body` set, if the whole representation is frozen and nothing is scaled.

    It is frozen if it has no trainable parameters and computes the same in training as otherwise.

    Args:
        config: Arguments of the learner.
        form: Form of the rows.
        x: Inputs (rows, ...) to check the network with.

    Raises:
        ModelError: The network cannot be used.
    """
    if not config.network.frozen or form.scale:
        return form
    x = _as_floats(config.floats, x[:36].unique(dim=0)[:6])
    model = _model(config, form, x, _outputs(form))
    part = model.parts["representation"]
    if part.parameters or part.statistics or part.keyed or part.draws:
        return form
    in_training, _ = part.apply({}, x, keys.derive(0, keys.Purpose.PROBE))
    same = torch.equal(in_training, model.features({}, x))
    return replace(form, body=model) if same else form


def stored_inputs(form: Form, x: Tensor) -> Tensor:
    """Return inputs in the form that is stored: features if the representation is frozen.

    Args:
        form: Form of the rows.
        x: Inputs (rows, ...), as `Inputs.read` returns them. They are returned unchanged if the
            representation is trained.
    """
    body = form.body
    if body is None:
        return x
    with torch.no_grad():
        blocks = [_as_floats(body.dtype, block) for block in x.to(body.device).split(256)]
        return torch.cat([body.features({}, block) for block in blocks])


def _as_floats(dtype: torch.dtype, x: Tensor) -> Tensor:
    """Return inputs as the network takes them: floats, with images in [0, 1]."""
    return x.to(dtype) / 255 if x.dtype == torch.uint8 else x.to(dtype)


def setup_of(config: Config, form: Form, rows: tuple[Stream, Splits], example: Tensor) -> Setup:
    """Build and check the network, and return the setup of a learner.

    Args:
        config: Arguments of the learner.
        form: Form of the rows.
        rows: A stream and its splits.
        example: Inputs (n, ...) to check the network with.

    Raises:
        ModelError: The network cannot be used.
    """
    (stream, splits), outputs = rows, rows[0].outputs
    model = _model(config, form, example, outputs)
    if not form.fixed:
        model = model.with_room(len(form.labels.names), outputs)
    method, replicas = config.method, len(config.seeds)
    with locating_errors(f"`prepare` of '{type(method).__name__}'", batched=False):
        prepared = method.modelled(model, outputs)
    return Setup(
        method=method,
        model=prepared,
        stream=stream,
        splits=splits,
        seeds=config.seeds,
        engine=choose(config.engine, model, example, replicas=replicas, batch=method.batch),
    )


def _model(config: Config, form: Form, example: Tensor, outputs: int) -> Model:
    """Return the network, checked on an example; only its prediction part if the body is frozen."""

    def network() -> Modules:
        representation, prediction = config.network.build(form.inputs.shape, outputs)
        return (representation if form.body is None else nn.Identity()), prediction

    images = form.inputs.images and form.body is None
    return Model.build(network, form.kind, example, outputs, dtype=config.floats, images=images)


def empty_stream(config: Config, form: Form, like: Examples, outputs: int) -> tuple[Stream, Splits]:
    """Return a stream without rows, for a learner between two chunks, and its empty splits.

    Args:
        config: Arguments of the learner.
        form: Form of the rows.
        like: Rows; only their shapes and types matter.
        outputs: Number of the network's outputs.
    """
    device = like.x.device
    no_rows = torch.zeros(len(config.seeds), 0, dtype=torch.int64, device=device)
    stream = Stream(
        name="the learner's rows",
        kind=form.kind,
        x=like.x[:0].clone(),
        y=like.y[:0].clone(),
        row=no_rows,
        task=no_rows,
        tasks=("no chunk",),
        classes=form.labels.names,
        outputs=outputs,
        scaled=form.inputs.numeric.to(device) if form.scale else None,
        fields=form.inputs.fields,
    )
    rows = Rows(no_rows, no_rows, no_rows.new_zeros(len(config.seeds), 2))
    return stream, Splits(rows, rows, rows)


def _initial_knowledge(config: Config, form: Form, chunk: Mapping[str, Examples]) -> Knowledge:
    """Return the knowledge before the first chunk, with a network for that chunk's shapes."""
    train, outputs = chunk["train"], _outputs(form)
    empty, _ = empty_stream(config, form, train, outputs)
    stream, splits = chunk_stream(empty, None, chunk, number=0, replicas=len(config.seeds))
    stream = fit_scale(stream, splits)
    setup = setup_of(config, form, (stream, splits), stream.example(config.floats))
    memories = empty_memories(setup, config.method.memory)
    return Knowledge(
        form=form,
        setup=setup,
        run=RunState(Position(), setup.start, memories),
        held=HeldRows(train.x[:0], train.y[:0], stream.task[0, :0]),
        evaluated=setup.start,
        first_task=torch.full((stream.outputs,), -1, device=train.x.device),
    )


def _outputs(form: Form) -> int:
    """Return the number of the network's outputs at the first chunk."""
    outputs = form.width if form.kind == "regression" else len(form.labels.names)
    return outputs if form.fixed else outputs_with_room(outputs)


def _with_room(
    config: Config, known: Knowledge, form: Form, rows: tuple[Stream, Splits]
) -> Knowledge:
    """Return the knowledge with an output for each class, widening the network if needed."""
    setup, classes = known.setup, len(form.labels.names)
    model, outputs = setup.model, setup.stream.outputs
    if model.present is None or classes == model.classes:
        return known
    if classes <= outputs:
        model = model.with_room(classes, outputs)
        return replace(known, setup=replace(setup, model=model).with_start(setup.start))
    stream = replace(rows[0], outputs=outputs_with_room(classes))
    example = stream.example(config.floats)
    wider = replace(setup_of(config, form, (stream, rows[1]), example), engine=setup.engine)
    start, empty = wider.start, empty_memories(wider, config.method.memory)
    state: State = widened(known.run.replicas, start)
    check_answers((model, wider.model), (known.run.replicas, state), example)
    run = replace(known.run, replicas=state, memories=widened_memories(known.run.memories, empty))
    first_task = torch.full((stream.outputs,), -1, device=model.device)
    first_task[:outputs] = known.first_task
    wider = wider.with_start(widened(setup.start, start))
    return replace(known, setup=wider, run=run, first_task=first_task)


def task_infos_of(known: Knowledge, stream: Stream, splits: Splits) -> tuple[TaskInfo, ...]:
    """Return the task infos of the stored rows, if any, and of the chunk after them.

    Args:
        known: Knowledge before the chunk.
        stream, splits: The stored rows and the chunk, as `pool.chunk_stream` returns them.
    """
    number, chunk = known.chunks, task_infos(stream, splits)[-1]
    seen_before = known.first_task >= 0
    seen = seen_before | chunk.seen
    info = replace(
        chunk,
        number=number,
        tasks=number + 1,
        classes=(*_classes_by_first_task(known), *chunk.classes[-1:]),
        seen=seen,
        new=seen & ~seen_before,
        rows_seen=known.rows + chunk.rows,
    )
    if number == 0:
        return (info,)
    past = replace(info, number=number - 1, rows=known.rows, rows_seen=known.rows, seen=seen_before)
    return past, info


def _classes_by_first_task(known: Knowledge) -> list[tuple[int, ...]]:
    """Return the classes that first arrived with each chunk learned; none for a regression."""
    classes: list[tuple[int, ...]] = [()] * known.chunks
    if known.form.kind == "classification":
        for number, task in enumerate(known.first_task.tolist()):
            if task >= 0:
                classes[task] += (number,)
    return classes


def _train(
    config: Config, setup: Setup, start: RunState
) -> tuple[RunState, tuple[str, ...] | None]:
    """Train on a chunk; return the new state and the conditions of Theorem 1 that were broken."""
    observers: list[Observer] = [FreezeNonFinite("stop")]
    if not config.monitor:
        return learn_task(setup, start, observers), None
    monitor = Monitor(MonitorSettings(), setup, start.memories if start.memories else None)
    run = learn_task(setup, monitor.begin(setup, start), [*observers, monitor])
    broken = monitor.readings(setup, run).broken
    return run, tuple(
        name for name in broken if name not in _DRIFT_CONDITIONS and broken[name].any()
    )


def _check_method(setup: Setup) -> None:
    """Raise SpecError if the method needs more than a learner stores."""
    name, method = setup.method_name, setup.method
    if all_task_draws(setup):
        raise SpecError(
            f"A learner keeps only its memory of past rows, and '{name}' trains on all of them; "
            "use a method with a memory, as 'er'."
        )
    phases = (*setup.phases[0], *setup.evaluation_phases[0])
    if any(draw.moved is not None for phase in phases for draw in phase.draws.values()):
        raise SpecError(
            f"A learner does not know how rows move, which '{name}' asks for; leave out the fourth "
            "term (fourth_term='off')."
        )
    if isinstance(method.rule, Theorem) and method.rule.drift != "none":
        raise SpecError(
            "A learner does not know how rows move, which the optimiser 'theorem' asks for; set "
            "its drift to 'none'."
        )
    if method.scheduling is not None and method.scheduling.over == "run":
        raise SpecError(
            "A learner does not know how many chunks will come, and a schedule over the run needs "
            "that; set its over to 'task'."
        )
