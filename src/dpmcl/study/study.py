"""Runs what folders lack of their specs, stores it, and hands back the results."""

import logging
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dpmcl.core.allocation import allocating
from dpmcl.core.atomic import sweep, write_text
from dpmcl.core.choices import Where
from dpmcl.core.model import Theta
from dpmcl.core.threads import threads
from dpmcl.core.tree import tree_map
from dpmcl.data.splits import Splits
from dpmcl.data.stream import Stream
from dpmcl.exceptions import SpecError
from dpmcl.results import store
from dpmcl.results.record import Record, merge, of_seeds
from dpmcl.results.store import StreamInfo
from dpmcl.study import aside, identity, protocol
from dpmcl.study.budget import Budget
from dpmcl.study.environment import describe
from dpmcl.study.executor import Assignment, Listener, execute
from dpmcl.study.identity import Held
from dpmcl.study.lock import locked
from dpmcl.study.result import Result
from dpmcl.study.shard import Shard
from dpmcl.training.checkpoints import folder_of, job_folder, refuse_removed
from dpmcl.training.job import Job, Outcome, Trainer, built_of, prepared, read
from dpmcl.training.keeper import Keeping
from dpmcl.training.monitor import MonitorSettings
from dpmcl.training.spec import Spec
from dpmcl.training.storage import Storage, absolute

OnProgress = Callable[[str, int, int], None]
"""Called as progress(method, done, total): updates of all replicas done, and to be done; of several
methods also as progress(ALL, done, total)."""

ALL = "all jobs"
"""Name under which the progress of several methods or runs together is told."""

_LOG = logging.getLogger("dpmcl")


def run(
    spec: Spec,
    folder: Path | None = None,
    progress: OnProgress | None = None,
    *,
    keeping: Keeping | None = None,
    fresh: bool = False,
) -> Result:
    """Run the jobs that a folder lacks of a spec, and return all that it then holds.

    Unfinished jobs go on from their last checkpoints. Without a folder everything runs, and nothing
    is stored. What a user should know is logged by the logger "dpmcl".

    Args:
        spec: What to run.
        folder: The run folder, or None.
        progress: Told of progress.
        keeping: How often checkpoints are made, and when to stop.
        fresh: Run everything anew; what the folder holds is kept in it until that has finished.

    Raises:
        FolderError: The folder holds runs of another spec, other data or other code, or another
            process writes to it.
        Stopped: It was told to stop.
        DivergenceError: A replica diverged, and the spec wants to stop then.
        DpmclError: Something else cannot be run.
    """
    return run_all([Planned(spec, folder)], progress, keeping=keeping, fresh=fresh)[0]


@dataclass(frozen=True, eq=False)
class Planned:
    """A run that is to be made.

    Attributes:
        spec: What to run.
        folder: The run folder, or None.
        name: What its methods' progress begins with; empty for a run by itself.
        budget: What the spec was made to keep to, for the protocol; None for nothing.
    """

    spec: Spec
    folder: Path | None
    name: str = ""
    budget: Budget | None = None


def run_all(
    runs: Sequence[Planned],
    progress: OnProgress | None = None,
    *,
    keeping: Keeping | None = None,
    fresh: bool = False,
    shard: Shard | None = None,
    on: Where = "here",
    storage: str | None = None,
) -> list[Result]:
    """Run the jobs that the folders of several runs lack, side by side, as `run` does for one.

    Args:
        runs: The runs; their folders differ.
        progress: Told of progress.
        keeping: How often checkpoints are made, and when to stop.
        fresh: Run everything anew.
        shard: Which jobs are run; None for all.
        on: "here", in this process and workers beside it, or "ray" (`study.on_ray`).
        storage: Address at which jobs on Ray keep checkpoints; None for the run folders, which all
            nodes must see then.

    Returns:
        The results of each run, in order.

    Raises:
        SpecError: `storage` is given, and jobs run here.
        DpmclError: As `run` raises it. Jobs that had finished are stored.
    """
    if storage is not None and on == "here":
        raise SpecError("--storage is for jobs on other machines; add --on ray, or leave it out.")
    with ExitStack() as stack:
        stack.enter_context(threads(runs[0].spec.threads))
        stack.enter_context(allocating())
        stack.enter_context(_once())
        for planned in runs:
            if planned.folder is not None:
                stack.enter_context(locked(planned.folder))
        streams: dict[str, Stream] = {}
        begun = [_Run(planned, progress, fresh, streams) for planned in runs]
        built: dict[str, Trainer] = {}
        assignments = [one for run in begun for one in run.begin(shard, storage, built)]
        if assignments:
            owner = {one: run for run in begun for one in run.assignments}
            several = len({(one.trainer, one.job.method) for one in assignments}) > 1
            shares = dict.fromkeys(assignments, 0.0)  # done of each job; all count alike

            def advanced(one: Assignment, done: int, total: int) -> None:
                owner[one].advanced(one.job, done, total)
                shares[one] = done / total if total else 1.0  # a method without updates
                if progress is not None and several:
                    progress(ALL, round(1000 * sum(shares.values())), 1000 * len(shares))

            listener = Listener(
                advanced, lambda one, outcome: owner[one].finished(one.job, outcome)
            )
            run_jobs = execute
            if on == "ray":
                from dpmcl.study.on_ray import execute_on_ray

                run_jobs = execute_on_ray
            run_jobs(assignments, keeping or Keeping(), listener)
        return [run.end() for run in begun]


class _Run:
    """A run that is being made: what the folder held, and what has come since."""

    def __init__(
        self,
        planned: Planned,
        progress: OnProgress | None,
        fresh: bool,
        streams: dict[str, Stream],
    ) -> None:
        self.spec, self.folder, self.name = planned.spec, planned.folder, planned.name
        self.budget = planned.budget
        self.progress, self.fresh, self.streams = progress, fresh, streams
        spec = self.spec
        self.before = _before(spec, self.folder, fresh)
        self.records = dict(self.before.records)
        self.theta: dict[str, dict[tuple[int, ...], Theta]] = {}
        self.states: dict[tuple[str, int], bytes] = {}
        self.done: dict[Job, tuple[int, int]] = {}
        self.assignments: list[Assignment] = []
        self.storage: Storage | None = None
        held = {name: {*record.test.seeds} for name, record in self.records.items()}
        self.missing = {name: {*spec.seeds} - held.get(name, set()) for name in spec.methods}

    def begin(
        self, shard: Shard | None, storage: str | None, built: dict[str, Trainer]
    ) -> list[Assignment]:
        """Refuse what cannot be run, make the folder ready, and return the jobs that it lacks.

        built: trainers of other runs, by `built_of`; this one's is added.
        """
        spec, before, folder = self.spec, self.before, self.folder
        trained = {name for name, seeds in self.missing.items() if seeds}
        _say_unwatched(spec, before.records, trained)
        sources = {} if folder is None else identity.sources(spec)
        identity.refuse_other_code(before, sources, spec, trained)
        stream, self.info = _built(spec, before.stream, self.streams)
        identity.refuse_other_data(before, self.info, spec)
        self.table = identity.united(before, spec.to_table())
        if folder is not None and storage is not None:
            self.storage = Storage(absolute(storage), self._stored_as(folder))
        if not trained and shard is None:
            return []
        key = built_of(spec)
        self.trainer = Trainer(
            spec,
            stream,
            digest=self.info.digest,
            folder=folder,
            storage=self.storage,
            like=built.get(key),
        )
        built.setdefault(key, self.trainer)
        for name in spec.methods:
            self.trainer.check(Job(name, spec.seeds[:1]))
        mine = [job for job in self.trainer.jobs() if shard is None or next(shard)]
        self.jobs = [job for job in mine if self.missing[job.method] & {*job.seeds}]
        if folder is not None and trained:
            identity.sources(spec)  # again: workers read the user's files when they start
            self._make_ready(folder, trained)
            code = {
                name: {k: v.hashes for k, v in sources[name].items()} for name in sorted(trained)
            }
            store.save_start(folder, self.table, self.info, {**before.code, **code})
            if self.storage is not None:
                write_text(folder / "storage", self.storage.run + "\n")
                self.storage.begin(folder / "spec.toml")
        ordered = self.trainer.longest_first(self.jobs)
        self.assignments = [Assignment(self.trainer, job) for job in ordered]
        return self.assignments

    def _stored_as(self, folder: Path) -> str:
        """Return the name of the run on storage: a new one, unless checkpoints may be there."""
        file = folder / "storage"
        if self.before.spec and file.is_file():  # of a fresh run nothing is held before
            name = file.read_text("utf-8", errors="replace").strip()
            if re.fullmatch("[0-9a-f]{32}", name):  # the folder may be anybody's
                return name
        return uuid.uuid4().hex

    def end(self) -> Result:
        """Remove what is of no more use, and return all results."""
        folder, theta = self.folder, {name: _joined(parts) for name, parts in self.theta.items()}
        if folder is not None:
            self._remove_checkpoints(folder)
            aside.remove_finished(folder, self.table, self.records)
            stored = protocol.keep(folder, self.budget)
            return Result(**vars(stored), theta=theta, folder=folder, made=self.spec)
        records = {name: self.records[name] for name in self.spec.methods}
        return Result(
            self.table, self.info, records, theta=theta, made=self.spec, states=self.states
        )

    def _make_ready(self, folder: Path, trained: set[str]) -> None:
        """Make ready a folder to which jobs are about to write, now that nothing is refused."""
        if self.fresh:
            kept = aside.put_aside(folder)
            if kept is not None:
                _LOG.warning(f"What {folder} held is kept in {kept} until this run has finished.")
        extended = trained & set(self.before.records)
        self.mixed = identity.of_other_versions(folder, extended)
        names = {job_folder(job.method, job.seeds) for job in self.jobs}
        for name in trained:
            for path in sorted(folder_of(folder, name).glob("*")):
                if (name, path.name) not in names:
                    _LOG.warning(
                        "%s holds checkpoints of an earlier version, or of seeds that train in "
                        "other groups now; they are not used.",
                        path,
                    )

    def advanced(self, job: Job, done: int, total: int) -> None:
        """Report a method's progress: that of all of its jobs, of equal replicas."""
        self.done[job] = done, total
        if self.progress is None:
            return
        jobs = [other for other in self.jobs if other.method == job.method]
        replicas = sum(len(other.seeds) for other in jobs)
        all_done = sum(self.done[other][0] for other in jobs if other in self.done)
        name = f"{self.name}: {job.method}" if self.name else job.method
        self.progress(name, all_done, total * replicas // len(job.seeds))

    def finished(self, job: Job, outcome: Outcome) -> None:
        """Take a job's results in, and store them; its checkpoints are then of no more use.

        Seeds that the folder held already stay as they are.
        """
        name, seeds = job.method, job.seeds
        places = [i for i, seed in enumerate(seeds) if seed in self.missing[name]]
        new = tuple(seeds[i] for i in places)
        record = of_seeds(outcome.record, new)
        theta: Theta = tree_map(lambda leaf: leaf[places], outcome.theta)
        buffers: Theta = tree_map(lambda leaf: leaf[places], outcome.buffers)
        self.theta.setdefault(name, {})[new] = theta
        before = self.records.get(name)
        self.records[name] = record if before is None else merge(before, record)
        states = {seeds[i]: outcome.states[i] for i in places if outcome.states}
        if self.folder is None:
            self.states |= {(name, seed): state for seed, state in states.items()}
            return
        refuse_removed(self.folder)
        for seed, state in states.items():
            store.save_state(self.folder, name, seed, state)
        whole = {part: {**values, **buffers.get(part, {})} for part, values in theta.items()}
        store.save_parameters(self.folder, name, new, whole)
        entry = describe(
            name,
            new,
            device=self.trainer.device,
            engine=self.trainer.engine.name,
            resumed=outcome.resumed,
        )
        if name in self.mixed:
            entry["repeats"] = "to rounding"
        store.add_environment(self.folder, entry)
        store.save_records(self.folder, self.records)
        if (checkpoints := self.trainer.checkpoints(job)) is not None:
            checkpoints.clear()

    def _remove_checkpoints(self, folder: Path) -> None:
        """Remove what is left of checkpoints of methods that have finished."""
        for name in self.spec.methods:
            shutil.rmtree(folder_of(folder, name), ignore_errors=True)
            if self.storage is not None:
                self.storage.remove(folder_of(Path(), name).as_posix())
        with suppress(OSError):  # other methods' may be in it
            (folder / "checkpoints").rmdir()
        if self.storage is not None and not self.storage.names("checkpoints"):
            self.storage.remove("")
            (folder / "storage").unlink(missing_ok=True)


@contextmanager
def _once() -> Iterator[None]:
    """Drop lines of which one is enough for all jobs of a method (`Setup.say`)."""
    said: set[str] = set()

    def new(record: logging.LogRecord) -> bool:
        once = getattr(record, "once", None)
        repeated = once in said
        said.update({once} if once else ())
        return not repeated

    _LOG.addFilter(new)
    try:
        yield
    finally:
        _LOG.removeFilter(new)


def _joined(parts: Mapping[tuple[int, ...], Theta]) -> Theta:
    """Return the parameters of all jobs of a method, in the order of their seeds."""
    ordered = [parts[seeds] for seeds in sorted(parts)]
    theta: Theta = tree_map(lambda *leaf: torch.cat(leaf), *ordered)
    return theta


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


def _say_unwatched(spec: Spec, before: Mapping[str, Record], trained: set[str]) -> None:
    """Say where something is asked of the monitor that it will not do."""
    monitor = spec.monitor
    if not monitor.active and monitor != MonitorSettings():
        _LOG.warning("[monitor] is set and nothing is watched; add --watch terms,stability.")
    for name in spec.methods if monitor.watch else ():
        record = before.get(name)
        if name not in trained and record is not None and record.readings is None:
            _LOG.warning(
                f"{name}: has run already, and was not watched; to watch it, choose another folder "
                "with --out."
            )


def _built(
    spec: Spec, before: StreamInfo | None, streams: dict[str, Stream]
) -> tuple[Stream, StreamInfo]:
    """Return the stream of the first seed, with its fingerprint.

    Where each replica draws its own rows, the fingerprint is that of one replica: the one that the
    folder names, or else the first. streams: those that other runs have read already.
    """
    key = repr((spec.stream_name, spec.stream, spec.dtype, spec.seeds[0]))
    stream = alone = streams[key] = streams.get(key) or read(spec, spec.seeds[:1])
    seed = None
    if not spec.stream.shared:
        named = None if before is None else before.digest_seed
        seed = spec.seeds[0] if named is None else named
        alone = stream if seed == spec.seeds[0] else read(spec, (seed,))
    digest = replace(alone, scale=None).digest()
    info = StreamInfo(
        name=stream.name,
        kind=stream.kind,
        tasks=stream.tasks,
        classes=stream.classes,
        scenario=stream.scenario,
        digest=digest,
        digest_seed=seed,
        fields=stream.fields,
    )
    return stream, info


@allocating()
def preview(spec: Spec) -> tuple[Stream, Splits]:
    """Return the stream of a spec and its splits, for the first seed, without training.

    Args:
        spec: A checked spec.
    """
    return prepared(spec, read(spec, spec.seeds[:1]), spec.seeds[:1])
