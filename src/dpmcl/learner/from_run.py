"""A learner that goes on where a replica of a run ended."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from dpmcl import plugins
from dpmcl.core.memory import Memories, longer
from dpmcl.core.tree import from_named, named_leaves, rebuilt
from dpmcl.data.stream import Stream
from dpmcl.exceptions import FolderError, SpecError, reason
from dpmcl.learner.answers import computing
from dpmcl.learner.config import Config
from dpmcl.learner.inputs import Inputs, opened, without
from dpmcl.learner.knowledge import Form, Knowledge, resting, setup_of
from dpmcl.learner.labels import LabelMap, of_names
from dpmcl.learner.learner import Learner
from dpmcl.learner.network import Network
from dpmcl.learner.pool import Examples, dropped, numbered
from dpmcl.methods._method import State
from dpmcl.streams.table import Table
from dpmcl.training.evaluation import shown
from dpmcl.training.job import Job, Trainer, read
from dpmcl.training.loop import rehearsed
from dpmcl.training.memories import empty_memories
from dpmcl.training.setup import Setup
from dpmcl.training.spec import Spec
from dpmcl.training.state import Position, RunState


def learner_of_run(
    spec: Spec, method: str, seed: int, *, tensors: Mapping[str, Tensor], digest: str
) -> Learner:
    """Return a learner that goes on where a replica of a run ended.

    Args:
        spec: The run's.
        method: Name of the method in it.
        seed: The replica's.
        tensors: As `Outcome.last_state` returned them.
        digest: Fingerprint of the run's data.

    Raises:
        SpecError: A learner cannot go on from such a run.
        FolderError: The data have changed, or the state is of another form.
    """
    stream = read(spec, (seed,))
    if spec.stream.shared and digest and replace(stream, scale=None).digest() != digest:
        raise FolderError("The data of this run have changed, and its memory holds rows of them.")
    if stream.view is not None or spec.precision is not None:
        raise SpecError(
            "A learner sees rows as they come, in full precision; it cannot go on from a "
            "domain-incremental stream, or a run with `precision`."
        )
    one = replace(spec, device="cpu", engine="looped")
    setup = Trainer(one, stream).setup(Job(method, (seed,)))
    try:
        known = _knowledge(one, setup, tensors)
    except (LookupError, ValueError, StopIteration, RuntimeError) as error:
        raise FolderError(f"The state is of another form ({reason(error)}).") from None
    return Learner._of(_config(one, setup), known)


def _config(spec: Spec, setup: Setup) -> Config:
    """Return what a learner of a run is made with."""
    ours = plugins.is_ours("network", spec.network_name) and spec.network_name != "python"
    table = {"name": spec.network_name, **spec.network.to_table()} if ours else {}
    return Config(
        method=setup.method,
        network=Network(spec.network.build, spec.network_name, table),
        seed=setup.seeds[0],
        kind=setup.stream.kind,
        scale=setup.stream.scaled is not None,
        validation=0.25 if setup.method.trains_on_validation else None,
        dtype=spec.dtype,
    )


def _knowledge(spec: Spec, setup: Setup, tensors: Mapping[str, Tensor]) -> Knowledge:
    """Return what a replica knew at the end of a run."""
    config, form = _config(spec, setup), _form(spec, setup.stream)
    state: State = from_named(setup.start, "state", tensors)
    memories = _memories(setup, tensors)
    run = RunState(Position(setup.tasks), state, memories)
    held = dropped(setup.stream, setup.splits, memories)
    like = Examples(setup.stream.x[:1], setup.stream.y[:1])
    rest, nobody = resting(config, form, like, setup.stream.outputs)
    rest = replace(rest, scaled=setup.stream.scaled, scale=setup.stream.scale)
    example = setup.stream.example(config.floats)
    with computing():
        over = setup_of(config, form, (rest, nobody), example).starting(setup.start)
        answering = shown(setup, rehearsed(setup, run, setup.tasks - 1))
    info = setup.task_infos[-1]
    return Knowledge(
        form=form,
        setup=over,
        run=replace(run, position=Position(), memories=numbered(memories)),
        held=held,
        shown=answering,
        seen=info.seen,
        chunks=setup.tasks,
        rows=info.rows_seen,
    )


def _form(spec: Spec, stream: Stream) -> Form:
    """Return what the run's rows have in common."""
    inputs = Inputs(tuple(stream.x.shape[1:]), stream.x.dtype == torch.uint8)
    table, target = spec.stream, ""
    if isinstance(table, Table):
        target = table.target
        inputs = Inputs.of(without(opened(table.path), target, table.task or "", *table.ignore))
        if inputs.columns != stream.columns:
            raise ValueError("the columns of the table are others")
    regression = stream.kind == "regression"
    return Form(
        inputs=inputs,
        kind=stream.kind,
        labels=LabelMap() if regression else of_names(stream.classes),
        flat=stream.outputs == 1,
        width=stream.outputs if regression else 1,
        scale=stream.scaled is not None,
        target=target,
    )


def _memories(setup: Setup, tensors: Mapping[str, Tensor]) -> Memories:
    """Return the memories, as long as the method's."""
    memories = {}
    for name, empty in empty_memories(setup, 1).items():
        form = dict(empty._asdict())
        values = [tensors[key] for key in named_leaves(form, f"memory.{name}")]
        memory = empty._replace(**rebuilt(form, values))
        rows = setup.splits.named(name).row.shape[1]
        if memory.position.numel() and not 0 <= int(memory.position.max()) < rows:
            raise ValueError("the memory holds other rows")
        memories[name] = memory
    return longer(memories, setup.method.memory)
