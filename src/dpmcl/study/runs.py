"""Run the jobs whose results are missing from run folders, and store their results."""

import logging
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from dpmcl.core.allocation import report_out_of_memory
from dpmcl.core.atomic import sweep, write_text
from dpmcl.core.choices import Where
from dpmcl.core.lock import locked
from dpmcl.core.model import Theta
from dpmcl.core.precision import arithmetic
from dpmcl.core.threads import threads
from dpmcl.core.tree import tree_map
from dpmcl.data.splits import Splits
from dpmcl.data.stream import Stream
from dpmcl.exceptions import SpecError
from dpmcl.results import store
from dpmcl.results.record import Record, merge
from dpmcl.results.store import Stored, StreamInfo
from dpmcl.study import identity, previous_results, protocol
from dpmcl.study.budget import Budget
from dpmcl.study.environment import describe
from dpmcl.study.executor import Assignment, execute
from dpmcl.study.result import Result
from dpmcl.study.shard import Shard
from dpmcl.training.checkpoints import checkpoint_folder, job_folder, refuse_removed
from dpmcl.training.job import (
    Job,
    Outcome,
    Trainer,
    fingerprint_of_data,
    read_stream,
    scaled_and_split,
    trainer_key,
)
from dpmcl.training.keeper import Keeping
from dpmcl.training.monitor import MonitorSettings
from dpmcl.training.spec import Spec
from dpmcl.training.storage import Storage, absolute_address

OnProgress = Callable[[str, int, int], None]
"""Called as progress(method, done, total), in updates of all replicas of the method. With several
methods it is also called as progress(ALL, done, total), in thousandths of a job."""

ALL = "all jobs"
"""Name under which the progress of all jobs together is reported."""

_LOG = logging.getLogger("dpmcl")


@dataclass(frozen=True, eq=False)
class Planned:
    """A run to be made.

    Attributes:
        spec: The spec to run.
        folder: The run folder; None to store nothing.
        name: Prefix of the methods' names in progress reports; empty for a single run.
        budget: Budget that limited the spec, recorded in the protocol; None if there was none.
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
    """Run the jobs that the folders of runs lack side by side, and return all their results.

    Unfinished jobs resume from their last checkpoints. Without a folder, every job of a run is run
    and nothing is stored. Messages for the user go to the logger "dpmcl".

    Args:
        runs: The runs; each has a folder of its own.
        progress: Called with the number of updates done; None for no reports.
        keeping: How often to write checkpoints, and when to stop.
        fresh: Run every job anew; folders keep their earlier runs until the new ones have finished.
        shard: Selects the jobs to run; None for all.
        on: "here" for this process and worker processes, or "ray" (`study.on_ray`).
        storage: Address of the storage for checkpoints of jobs on Ray; None for the run folders,
            which all nodes must then see.

    Returns:
        The results of each run, in the order of `runs`.

    Raises:
        SpecError: `storage` is set, and `on` is "here".
        FolderError: A folder holds a run of another spec, data or code, or another process writes
            to it.
        Stopped: `keeping` asked the runs to stop.
        DivergenceError: A replica diverged, and its spec asks to stop then.
        DpmclError: A run cannot be made for another reason. Jobs that had finished are stored.
    """
    if storage is not None and on == "here":
        raise SpecError("--storage is for jobs on other machines; add --on ray, or leave it out.")
    with ExitStack() as stack:
        stack.enter_context(threads(runs[0].spec.threads))
        stack.enter_context(report_out_of_memory())
        stack.enter_context(arithmetic(None))  # networks are tried before a job sets its own
        stack.enter_context(_drop_repeated_lines())
        for planned in runs:
            if planned.folder is not None:
                stack.enter_context(locked(planned.folder))
        streams: dict[str, Stream] = {}
        built: dict[str, Trainer] = {}

        def report(name: str, done: int, total: int) -> None:
            if progress is not None:
                progress(name, done, total)
                if has_several:
                    share = sum(run.share_done for run in active)
                    progress(ALL, round(1000 * share), 1000 * len(assignments))

        active = [_Run(planned, report, fresh, streams) for planned in runs]
        assignments = [a for run in active for a in run.begin(shard, storage, built)]
        has_several = len({(a.trainer, a.job.method) for a in assignments}) > 1
        if assignments:
            run_jobs = execute
            if on == "ray":
                from dpmcl.study.on_ray import execute_on_ray

                run_jobs = execute_on_ray
            run_jobs(assignments, keeping or Keeping())
        return [run.end() for run in active]


class _Run:
    """A run in progress: what its folder held before, and the results of jobs finished since."""

    def __init__(
        self,
        planned: Planned,
        progress: OnProgress,
        fresh: bool,
        streams: dict[str, Stream],
    ) -> None:
        self.spec, self.folder, self.name = planned.spec, planned.folder, planned.name
        self.budget = planned.budget
        self.progress, self.fresh, self.streams = progress, fresh, streams
        spec = self.spec
        self.before = _earlier_content(spec, self.folder, fresh)
        self.records = dict(self.before.records)
        self.theta: dict[str, dict[tuple[int, ...], Theta]] = {}
        self.states: dict[tuple[str, int], bytes] = {}
        self.done: dict[Job, tuple[int, int]] = {}
        self.storage: Storage | None = None
        stored = {name: {*record.test.seeds} for name, record in self.records.items()}
        self.missing = {name: {*spec.seeds} - stored.get(name, set()) for name in spec.methods}

    def begin(
        self, shard: Shard | None, storage: str | None, built: dict[str, Trainer]
    ) -> list[Assignment]:
        """Check the run, prepare its folder, and return its missing jobs.

        `built` holds the trainers of other runs by `trainer_key(spec)`; this run's is added.
        """
        spec, before, folder = self.spec, self.before, self.folder
        trained = {name for name, seeds in self.missing.items() if seeds}
        _warn_unwatched(spec, before.records, trained)
        sources: identity.Sources = {}
        if folder is not None or spec.tuned_code:
            sources = identity.sources(spec)
            identity.warn_of_other_tuned_code(spec, sources)
        if folder is not None:
            identity.refuse_other_code(folder, before, sources, spec=spec, trained=trained)
        stream, self.info = _stream_and_info(spec, before.stream, self.streams)
        if folder is not None:
            identity.refuse_other_data(folder, before, self.info, spec)
        self.table = identity.united_spec(before, spec.to_table())
        if folder is not None and storage is not None:
            self.storage = Storage(absolute_address(storage), self._storage_name(folder))
        if not trained and shard is None:
            return []
        key = trainer_key(spec)
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
        shard_jobs = [job for job in self.trainer.jobs() if shard is None or next(shard)]
        self.jobs = [left for job in shard_jobs if (left := job.among(self.missing[job.method]))]
        if folder is not None and trained:
            identity.sources(spec)  # check again: workers will import the user's files
            self._prepare_folder(folder, trained)
            code = {
                name: {k: v.hashes for k, v in sources[name].items()} for name in sorted(trained)
            }
            store.save_start(folder, self.table, self.info, {**before.code, **code})
            if self.storage is not None:
                write_text(folder / "storage", self.storage.run + "\n")
                self.storage.write_mark(folder / "spec.toml")
        ordered = self.trainer.longest_first(self.jobs)
        return [
            Assignment(
                self.trainer, job, partial(self.report_progress, job), partial(self.store, job)
            )
            for job in ordered
        ]

    def _storage_name(self, folder: Path) -> str:
        """Return the name of the run on storage: the one in the folder, or else a new one."""
        file = folder / "storage"
        if self.before.spec and file.is_file():  # a fresh run has no spec before it
            name = file.read_text("utf-8", errors="replace").strip()
            if re.fullmatch("[0-9a-f]{32}", name):  # the folder may come from a stranger
                return name
        return uuid.uuid4().hex

    def end(self) -> Result:
        """Remove checkpoints and an earlier run that is no longer needed; return all results."""
        folder, theta = self.folder, {name: _joined(parts) for name, parts in self.theta.items()}
        if folder is not None:
            self._remove_checkpoints(folder)
            previous_results.remove_finished(folder, self.table, self.records)
            stored = protocol.check_and_save(folder, self.budget)
            return Result(**vars(stored), theta=theta, folder=folder, made=self.spec)
        records = {name: self.records[name] for name in self.spec.methods}
        return Result(
            self.table, self.info, records, theta=theta, made=self.spec, states=self.states
        )

    def _prepare_folder(self, folder: Path, trained: set[str]) -> None:
        """Prepare a folder for new results, after all checks have passed."""
        if self.fresh:
            earlier = previous_results.put_aside(folder)
            if earlier is not None:
                _LOG.warning(
                    f"What {folder} held is kept in {earlier} until this run has finished."
                )
        self.mixed = identity.warn_of_other_versions(self.before, trained)
        used = {job_folder(folder, job.method, job.seeds) for job in self.jobs}
        for name in trained:
            for path in sorted(checkpoint_folder(folder, name).glob("*")):
                if path not in used:
                    _LOG.warning(
                        "%s holds checkpoints of an earlier version, or of seeds that train in "
                        "other groups now; they are not used.",
                        path,
                    )

    @property
    def share_done(self) -> float:
        """Return the number of finished jobs, plus the finished share of each unfinished one."""
        # A method without updates has a total of 0.
        return sum(done / total if total else 1.0 for done, total in self.done.values())

    def report_progress(self, job: Job, done: int, total: int) -> None:
        """Report the progress of a method over its jobs; all replicas make equally many updates."""
        self.done[job] = done, total
        jobs = [other for other in self.jobs if other.method == job.method]
        replicas = sum(len(other.seeds) for other in jobs)
        all_done = sum(self.done[other][0] for other in jobs if other in self.done)
        name = f"{self.name}: {job.method}" if self.name else job.method
        self.progress(name, all_done, total * replicas // len(job.seeds))

    def store(self, job: Job, outcome: Outcome) -> None:
        """Store the results of a job, and remove its checkpoints."""
        name, seeds, record = job.method, job.seeds, outcome.record
        theta, buffers = outcome.state.theta, outcome.state.buffers
        self.theta.setdefault(name, {})[seeds] = theta
        before = self.records.get(name)
        self.records[name] = record if before is None else merge(before, record)
        states = dict(zip(seeds, outcome.states, strict=False))  # `last_states` may give none
        if self.folder is None:
            self.states |= {(name, seed): state for seed, state in states.items()}
            return
        refuse_removed(self.folder)
        for seed, state in states.items():
            store.save_state(self.folder, name, seed, state)
        parameters = {part: {**values, **buffers.get(part, {})} for part, values in theta.items()}
        store.save_parameters(self.folder, name, seeds, parameters)
        entry = describe(
            name,
            seeds,
            device=self.trainer.device,
            engine=self.trainer.engine.name,
            resumed=outcome.resumed,
        )
        if name in self.mixed or not outcome.exact:
            entry["repeats"] = "to rounding"
        store.add_environment(self.folder, entry)
        store.save_records(self.folder, self.records)
        if (checkpoints := self.trainer.checkpoints(job)) is not None:
            checkpoints.clear()

    def _remove_checkpoints(self, folder: Path) -> None:
        """Remove the remaining checkpoints of the methods of this run."""
        for name in self.spec.methods:
            shutil.rmtree(checkpoint_folder(folder, name), ignore_errors=True)
            if self.storage is not None:
                self.storage.remove(checkpoint_folder(Path(), name).as_posix())
        with suppress(OSError):  # not empty if it holds other methods' checkpoints
            (folder / "checkpoints").rmdir()
        if self.storage is not None and not self.storage.names("checkpoints"):
            self.storage.remove("")
            (folder / "storage").unlink(missing_ok=True)


@contextmanager
def _drop_repeated_lines() -> Iterator[None]:
    """Drop repeated log lines that have the same mark `once`, one for all jobs of a method."""
    seen: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        once = getattr(record, "once", None)
        repeated = once in seen
        seen.update({once} if once else ())
        return not repeated

    _LOG.addFilter(is_new)
    try:
        yield
    finally:
        _LOG.removeFilter(is_new)


def _joined(parts: Mapping[tuple[int, ...], Theta]) -> Theta:
    """Return the parameters of all jobs of a method, in the order of their seeds."""
    ordered = [parts[seeds] for seeds in sorted(parts)]
    return tree_map(lambda *leaf: torch.cat(leaf), *ordered)


def _earlier_content(spec: Spec, folder: Path | None, fresh: bool) -> Stored:
    """Return the content of a folder on which a run may build. Raises FolderError."""
    if folder is None:
        return store.EMPTY
    sweep(folder)
    previous_results.complete_move(folder)
    return store.EMPTY if fresh else identity.read_to_extend(folder, spec)


def _warn_unwatched(spec: Spec, before: Mapping[str, Record], trained: set[str]) -> None:
    """Warn of settings of the monitor that have no effect."""
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


def _stream_and_info(
    spec: Spec, before: StreamInfo, streams: dict[str, Stream]
) -> tuple[Stream, StreamInfo]:
    """Return the stream of the first seed, with its fingerprint.

    If each replica draws its own rows, the fingerprint is that of one replica: the one that the
    folder names, or else the first. `streams` holds the streams that other runs have read; this
    one is added.
    """
    key = repr((spec.stream_name, spec.stream, spec.dtype, spec.seeds[0]))
    stream = one_replica = streams[key] = streams.get(key) or read_stream(spec, spec.seeds[:1])
    seed = None
    if not spec.stream.shared:
        seed = spec.seeds[0] if before.digest_seed is None else before.digest_seed
        one_replica = stream if seed == spec.seeds[0] else read_stream(spec, (seed,))
    info = StreamInfo(
        name=stream.name,
        kind=stream.kind,
        tasks=stream.tasks,
        classes=stream.classes,
        scenario=stream.scenario,
        digest=fingerprint_of_data(one_replica),
        digest_seed=seed,
        fields=stream.fields,
    )
    return stream, info


@report_out_of_memory()
def preview(spec: Spec) -> tuple[Stream, Splits]:
    """Return the stream and the splits of a spec, for its first seed, without training.

    Args:
        spec: A checked spec.
    """
    return scaled_and_split(spec, read_stream(spec, spec.seeds[:1]), spec.seeds[:1])
