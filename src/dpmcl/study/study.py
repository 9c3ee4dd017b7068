"""A study: a spec and its folder. Runs what is missing, stores it, and hands back the results."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from dpmcl.core.allocation import allocating
from dpmcl.core.atomic import path_of, sweep
from dpmcl.core.errors import Errors
from dpmcl.core.generators import forked
from dpmcl.core.gradients import Work
from dpmcl.core.model import Model, Theta
from dpmcl.core.precision import arithmetic
from dpmcl.core.threads import threads
from dpmcl.data.scaling import check_digits, fitted
from dpmcl.data.splits import Splits, split
from dpmcl.data.stream import Stream
from dpmcl.data.task_info import task_infos
from dpmcl.engine import Engine, choose, device_of
from dpmcl.exceptions import (
    DataError,
    DivergenceError,
    DpmclError,
    SpecError,
    printable,
    reason,
    shown,
)
from dpmcl.results import figures, store, table, theory_figures
from dpmcl.results.record import Divergence, Record, merge
from dpmcl.results.store import StreamInfo
from dpmcl.study import aside, identity
from dpmcl.study.environment import describe
from dpmcl.study.identity import Held
from dpmcl.study.lock import locked
from dpmcl.theory.readings import Readings
from dpmcl.training.checkpoints import Checkpoints, Origin, Snapshot, refuse_removed
from dpmcl.training.keeper import Keeper, Keeping
from dpmcl.training.loop import train
from dpmcl.training.monitor import MonitorSettings
from dpmcl.training.motion_check import check_motion
from dpmcl.training.spec import Spec, normalised

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawn = Literal["errors", "terms", "stability"]
"""What a figure shows."""

Watch = Callable[[str, int, int], None]
"""watch(method, done, total): updates of all replicas done, and to be done."""

Say = Callable[[str], None]
"""say(line): what a user should know while it runs: resumed, diverged, damaged files."""


@dataclass(frozen=True, eq=False)
class Result:
    """The results of a study, by method.

    spec: the complete spec as a table. stream: names. records: errors and work.
    theta: final parameters of the methods trained in this call, replicas first.
    """

    spec: Mapping[str, Any]
    stream: StreamInfo
    records: Mapping[str, Record]
    theta: Mapping[str, Theta] = field(default_factory=dict)

    @property
    def errors(self) -> dict[str, Errors]:
        """Errors on test rows by method: E[replica, after, task]."""
        return {name: record.test for name, record in self.records.items()}

    @property
    def readings(self) -> dict[str, Readings]:
        """What was watched, by method; methods that were not are left out."""
        found = {name: record.readings for name, record in self.records.items()}
        return {name: readings for name, readings in found.items() if readings is not None}

    def rows(self, metrics: str | Sequence[str] = ()) -> list[dict[str, Any]]:
        """The table's rows, each a dict of numbers; `metrics` names further ones."""
        names = [metrics] if isinstance(metrics, str) else metrics
        if not isinstance(names, list | tuple):
            raise SpecError(f"metrics must be a list of names, got {shown(metrics)}.")
        return self._marked(table.rows(self.records, self.stream, names))

    def rows_by_task(self) -> list[dict[str, Any]]:
        """A row for each method and task: its error just after it was learned, and at the end."""
        return self._marked(table.rows_by_task(self.records, self.stream))

    def _marked(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows, each saying whether its method trained on validation rows as well."""
        on_validation = {name: _trains_on_validation(self.spec, name) for name in self.records}
        return [{**row, "trains_on_validation": on_validation[row["method"]]} for row in rows]

    def table(self, style: table.Format = "text") -> str:
        """The table as text: "text", "json", "csv", "markdown" or "latex"."""
        return table.render(self.rows(), style)

    def plot(
        self, path: str | Path | None = None, smooth: float = 0.0, what: Drawn = "errors"
    ) -> "Figure":
        """A matplotlib figure, also written to `path` if given.

        what: "errors", CME and NTE against tasks; "terms" or "stability", what was watched.
        """
        if not isinstance(what, str):
            raise SpecError(f"A figure shows errors, terms or stability, got {shown(what)}.")
        if what == "errors":
            figure = figures.curves(self.records, self.stream, smooth)
        else:
            figure = theory_figures.draw(self.readings, self.stream, what)
        if path is not None:
            figures.save(figure, path_of(path))
        return figure


def _trains_on_validation(spec: Mapping[str, Any], name: str) -> bool:
    try:
        methods = normalised(spec)["methods"]
        alone = Spec.parse({**spec, "methods": {name: methods[name]}})
    except (DpmclError, KeyError):  # it names a plugin that is not here now
        return False
    return bool(alone.methods[name].trains_on_validation)


def holds_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return store.is_run(folder)


def load(folder: Path) -> Result:
    """The results that a run folder holds. Raises FolderError when it is none."""
    stored = store.load(folder)
    return Result(stored.spec, stored.stream, stored.records)


def run(
    spec: Spec,
    folder: Path | None = None,
    watch: Watch | None = None,
    say: Say | None = None,
    keeping: Keeping | None = None,
    fresh: bool = False,
) -> Result:
    """Run what the folder lacks of a spec, and return all that it then holds.

    An unfinished run in the folder goes on from its last checkpoint. Without a folder everything
    runs, and nothing is stored.

    Args:
        spec: What to run.
        folder: The run folder, or None.
        watch: Told of progress.
        say: Told what a user should know; None logs a warning.
        keeping: How often checkpoints are made, and when to stop.
        fresh: Run everything anew; what the folder holds is kept beside it until that has finished.

    Raises:
        FolderError: The folder holds runs of another spec, other data or other code, or another
            process writes to it.
        Stopped: It was told to stop.
        DivergenceError: A replica diverged, and the spec wants to stop then.
        DpmclError: Something else cannot be run.
    """
    say = say or (lambda line: logging.getLogger("dpmcl").warning(printable(line)))
    keeping = keeping or Keeping()
    lock = locked(folder) if folder is not None else nullcontext()
    with threads(spec.threads), allocating(), lock:
        return _run(spec, folder, watch, say, keeping, fresh)


def _run(
    spec: Spec, folder: Path | None, watch: Watch | None, say: Say, keeping: Keeping, fresh: bool
) -> Result:
    device = device_of(spec.device)
    before = _before(spec, folder, fresh)
    wanted = _united(before, spec.to_table())
    plan = _planned(spec, folder, before, fresh, say)
    _say_unwatched(spec, before.records, plan.trained, say)
    sources = {} if folder is None else identity.sources(spec)
    identity.refuse_other_code(before, sources, spec, plan.trained, say)
    probe = before.probe(spec)
    if not plan.groups:
        identity.refuse_other_data(before, _built(spec, (probe,), probe)[1], spec)
    records, info = dict(before.records), None
    theta: dict[str, Theta] = {}
    for unfinished, seeds in plan.groups:
        stream, info = _built(spec, seeds, probe)
        identity.refuse_other_data(before, info, spec)
        before = replace(before, stream=info)
        stage = _stage(spec, seeds, stream, device)
        first = task_infos(stage.stream, stage.splits)[0]
        for method in spec.methods.values():
            phases = method.phases(method.prepare(stage.model), first)
            check_motion(method, stage.stream, phases, spec.monitor.drift)
        if folder is not None:
            identity.sources(spec)  # again: workers read the user's files when they start
            if not theta:
                _begin(spec, folder, before, plan, fresh, say)
            code = identity.recorded(before.code, sources, plan.trained)
            store.save_start(folder, wanted, info, code)
        for name in spec.methods:
            if (name, unfinished, seeds) not in plan.jobs:
                continue
            origin = Origin(name, seeds, info.digest, stage.engine.name, device.type)
            keeper = _Keeper(keeping, plan.kept[name], origin, say)
            with arithmetic(spec.precision):
                record, theta[name] = _train(name, stage, spec, watch, say, keeper)
            records[name] = merge(records[name], record) if name in records else record
            if folder is not None:
                _store(spec, folder, origin, keeper, records, theta[name])
    if folder is not None:
        aside.remove_finished(folder, records)
        return replace(load(folder), theta=theta)
    assert info is not None
    return Result(wanted, info, {name: records[name] for name in spec.methods}, theta)


def _store(
    spec: Spec,
    folder: Path,
    origin: Origin,
    keeper: "_Keeper",
    records: Mapping[str, Record],
    theta: Theta,
) -> None:
    """Store what a method's seeds have come to; its checkpoints are then of no more use."""
    method, seeds = origin.method, origin.seeds
    refuse_removed(folder)
    store.save_parameters(folder, method, seeds, theta)
    device = device_of(spec.device)
    entry = describe(method, seeds, _fixed(spec), device, origin.engine, keeper.resumed)
    store.add_environment(folder, entry)
    store.save_records(folder, records)
    keeper.clear()


@dataclass(frozen=True)
class _Plan:
    """Jobs of a run: what is to be trained.

    jobs: method, whether it goes on from a checkpoint, and seeds that train together. kept: where
    each method of the spec has its checkpoints.
    """

    jobs: list[tuple[str, bool, tuple[int, ...]]]
    kept: Mapping[str, Checkpoints | None]

    @property
    def trained(self) -> set[str]:
        """Methods of which something is missing."""
        return {name for name, *_ in self.jobs}

    @property
    def groups(self) -> list[tuple[bool, tuple[int, ...]]]:
        """Seeds for which a stream is made, and whether they go on from a checkpoint.

        What was interrupted comes first, since a method has one place for its checkpoints.
        """
        groups = {(unfinished, seeds) for _, unfinished, seeds in self.jobs}
        return sorted(groups, key=lambda group: (not group[0], len(group[1]), group[1]))


def _planned(spec: Spec, folder: Path | None, before: Held, fresh: bool, say: Say) -> _Plan:
    kept = {
        name: None if folder is None else Checkpoints(folder, name, say) for name in spec.methods
    }
    jobs = [
        (name, *job)
        for name in spec.methods
        for job in _jobs(spec.seeds, before.records.get(name), None if fresh else kept[name])
    ]
    return _Plan(jobs, kept)


def _before(spec: Spec, folder: Path | None, fresh: bool) -> Held:
    """Return what a folder holds that a spec's run may build on. Raises FolderError."""
    if folder is None:
        return Held()
    sweep(folder)
    aside.complete(folder)
    if fresh:
        aside.refuse_foreign(folder)
        return Held()
    before = identity.held(folder)
    if before.spec:
        identity.refuse_difference(folder, before.spec, spec.to_table(), spec.stream.places)
    return before


def _begin(spec: Spec, folder: Path, before: Held, plan: _Plan, fresh: bool, say: Say) -> None:
    """Make ready a folder to which a run is about to write, now that nothing is refused."""
    place = aside.put_aside(folder, list(spec.methods), spec.seeds) if fresh else None
    if place is not None:
        say(f"What {folder} held is kept in {place} until this run has finished.")
    identity.say_other_versions(folder, plan.trained & set(before.records), say)


def _say_unwatched(spec: Spec, before: Mapping[str, Record], trained: set[str], say: Say) -> None:
    """Says where something is asked of the monitor that it will not do."""
    monitor = spec.monitor
    if not monitor.active and monitor != MonitorSettings():
        say("[monitor] is set and nothing is watched; add --watch terms,stability.")
    for name in spec.methods if monitor.watch else ():
        record = before.get(name)
        if name not in trained and record is not None and record.readings is None:
            say(
                f"{name}: has run already, and was not watched; to watch it, choose another folder "
                "with --out."
            )


def _jobs(
    seeds: tuple[int, ...], record: Record | None, checkpoints: Checkpoints | None
) -> list[tuple[bool, tuple[int, ...]]]:
    """Which seeds to train together, and whether they go on from a checkpoint.

    Those of an unfinished run, then the others that are missing. Checkpoints of a run that has
    ended are removed.
    """
    done = set(record.test.seeds) if record is not None else set()
    missing = tuple(seed for seed in seeds if seed not in done)
    origin = checkpoints.origin() if checkpoints is not None else None
    if checkpoints is not None and origin is not None and done.issuperset(origin.seeds):
        checkpoints.clear()
        origin = None
    if origin is None or not set(origin.seeds) <= set(missing):
        return [(False, missing)] if missing else []
    rest = tuple(seed for seed in missing if seed not in origin.seeds)
    return [(True, origin.seeds), *([(False, rest)] if rest else [])]


class _Keeper(Keeper):
    """Says where a run goes on from."""

    def __init__(
        self, keeping: Keeping, checkpoints: Checkpoints | None, origin: Origin, say: Say
    ) -> None:
        super().__init__(keeping, checkpoints, origin)
        self._kept, self._now, self._tell = checkpoints, origin, say
        self.resumed = False

    def load(self, like: Snapshot) -> Snapshot | None:
        before = self._kept.origin() if self._kept is not None else None
        if before is None or before.seeds != self._now.seeds:
            return None
        if before.digest != self._now.digest:
            self._tell(
                f"{self._now.method}: its checkpoint is of other data, or of version 0.1, which "
                "did not record them; it begins anew."
            )
            return None
        found = super().load(like)
        if found is not None:
            self.resumed = True
            task, phase, update = found.position
            changed = before != self._now
            same = "; another engine, device or PyTorch made it, so equal to rounding" * changed
            self._tell(
                f"{self._now.method}: goes on from its last checkpoint (task {task}, phase "
                f"{phase}, update {update}){same}."
            )
        return found

    def clear(self) -> None:
        """Removes the checkpoints of a run that has ended."""
        if self._kept is not None:
            self._kept.clear()


def _fixed(spec: Spec) -> dict[str, int | None]:
    """The seeds that replicas share."""
    return {
        "split_seed": spec.split_seed,
        "weights_seed": spec.weights_seed,
        "order_seed": getattr(spec.stream, "order_seed", None),
    }


@dataclass(frozen=True)
class _Stage:
    """What the methods of a study share for a set of seeds."""

    seeds: tuple[int, ...]
    stream: Stream
    splits: Splits
    model: Model
    engine: Engine


def _stage(spec: Spec, seeds: tuple[int, ...], built: Stream, device: torch.device) -> _Stage:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    stream, splits = _prepared(spec, built.to(device), seeds)
    shape, outputs = stream.x.shape[1:], stream.outputs
    example = stream.example(dtype)
    model = Model.build(
        lambda: spec.network.build(shape, outputs),
        stream.kind,
        example,
        outputs,
        dtype,
        device,
        precision=spec.precision,
    )
    batch = max(method.batch for method in spec.methods.values())
    engine = choose(spec.engine, model, example, len(seeds), batch, spec.workers)
    return _Stage(seeds, stream, splits, model, engine)


def _train(
    name: str, stage: _Stage, spec: Spec, watch: Watch | None, say: Say, keeper: Keeper
) -> tuple[Record, Theta]:
    def progress(done: int, total: int) -> None:
        if watch:
            watch(name, done, total)

    def report(seed: int, where: Divergence) -> None:
        title = stage.stream.tasks[where.task]
        bound = spec.monitor.exceeding
        what = "is not finite" if where.cause == "not finite" else "has J above beta for too long"
        line = (
            f"{name}: seed {seed} {what} after update {where.update} of phase "
            f"{where.phase} of task {where.task} ('{title}')"
        )
        if where.cause == "cost" and bound == "stop":
            raise DivergenceError(
                f"{line}; take smaller steps (training.lr), raise monitor.beta, or go on without "
                "that replica with monitor.exceeding = 'freeze'."
            )
        if where.cause == "not finite" and spec.on_divergence == "stop":
            raise DivergenceError(
                f"{line}; take smaller steps (training.lr), or go on without that replica with "
                "on_divergence = 'freeze'."
            )
        say(f"{line}; it is frozen there, and its errors from then on are missing.")

    progress(0, 1)
    outcome = train(
        spec.methods[name],
        stage.model,
        stage.stream,
        stage.splits,
        stage.seeds,
        stage.engine,
        spec.evaluation,
        progress,
        keeper,
        report,
        spec.weights_seeds(stage.seeds),
        spec.monitor,
        lambda line: say(f"{name}: {line}"),
    )
    work = {seed: Work(**vars(outcome.work)) for seed in stage.seeds}
    record = Record(outcome.errors, work, outcome.diverged, outcome.readings)
    return record, outcome.theta


def _built(spec: Spec, seeds: tuple[int, ...], probe: int) -> tuple[Stream, StreamInfo]:
    """Return the stream of some seeds, with its fingerprint.

    Where each replica draws its own rows, the fingerprint is that of the replica of seed `probe`.
    """
    stream = _read(spec, seeds)
    seed = None if spec.stream.shared else probe
    alone = stream if seed is None or seeds == (seed,) else _read(spec, (seed,))
    digest = replace(alone, scale=None).digest()
    info = StreamInfo(
        stream.name, stream.kind, stream.tasks, stream.classes, stream.scenario, digest, seed
    )
    return stream, info


def _read(spec: Spec, seeds: tuple[int, ...]) -> Stream:
    with forked(0):  # libraries that read data may draw from Python's or NumPy's generator
        try:
            stream = spec.stream.build(seeds)
        except (DpmclError, MemoryError):
            raise
        except Exception as error:
            if ":" not in spec.stream_name:
                raise
            raise DataError(
                f"Stream '{spec.stream_name}' cannot be built: {type(error).__name__}: "
                f"{reason(error)}; mend its `build`, or what it reads."
            ) from error
    check_digits(stream, getattr(torch, spec.dtype))
    return stream


def _prepared(spec: Spec, stream: Stream, seeds: tuple[int, ...]) -> tuple[Stream, Splits]:
    splits = split(stream, spec.split_seeds(seeds), spec.stream.split)
    return fitted(stream, splits), splits


def _united(before: Held, new: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of the grown folder: all methods; all seeds, where they are a run of numbers."""
    if not before.spec:
        return dict(new)
    seeds = {s for record in before.records.values() for s in record.test.seeds}
    seeds |= set(range(new["seed"], new["seed"] + new["replicas"]))
    out = {**new, "methods": {**before.spec["methods"], **new["methods"]}}
    if max(seeds) - min(seeds) + 1 == len(seeds):
        out.update(seed=min(seeds), replicas=len(seeds))
    return out


@allocating()
def preview(spec: Spec) -> tuple[Stream, Splits]:
    """The stream of a spec and its splits, for the first seed, without training anything."""
    return _prepared(spec, _read(spec, spec.seeds[:1]), spec.seeds[:1])


def figure_path(folder: Path, what: str, suffix: str) -> Path:
    """Where a run folder keeps a figure."""
    return folder / "figures" / f"{what}.{suffix}"


def draw(
    result: Result, folder: Path, suffix: str = "png", smooth: float = 0.0, what: Drawn = "errors"
) -> Path:
    """Draws a study's curves into its folder and returns the file."""
    path = figure_path(folder, what, suffix)
    if not result.records:
        raise DpmclError(f"{folder} has no results yet; `dpmcl run` makes some.")
    result.plot(path, smooth, what)
    return path
