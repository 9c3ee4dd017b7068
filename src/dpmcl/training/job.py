"""A job: one method of a spec for a group of seeds. All training of a study is done by jobs."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import torch

from dpmcl import plugins
from dpmcl.core.allocation import is_out_of_memory, report_out_of_memory
from dpmcl.core.generators import forked
from dpmcl.core.model import Model
from dpmcl.core.precision import arithmetic
from dpmcl.core.threads import threads
from dpmcl.core.tree import tree_map
from dpmcl.data.scaling import check_digits, fit_scale, warn_if_clipped
from dpmcl.data.splits import Splits, split
from dpmcl.data.stream import Stream
from dpmcl.data.stream_check import broken_promise
from dpmcl.engine import Engine, choose, device_of, group_size
from dpmcl.exceptions import DataError, DeviceError, DpmclError, reason
from dpmcl.methods._method import State
from dpmcl.optimisers.theorem import Theorem
from dpmcl.results.record import Record, merge
from dpmcl.training.arriving import Arriving
from dpmcl.training.bytes_kept import with_bytes_kept
from dpmcl.training.checkpoints import Checkpoints, Origin
from dpmcl.training.checks import check
from dpmcl.training.divergence import FreezeNonFinite
from dpmcl.training.evaluation import Evaluation, Score, evaluated_states
from dpmcl.training.keeper import Keeper, Keeping
from dpmcl.training.last_state import last_states
from dpmcl.training.loop import after_evaluation_phases, first_state, planned_work, train
from dpmcl.training.monitor import Monitor, MonitorSettings
from dpmcl.training.observer import Observer
from dpmcl.training.progress import Progress, ProgressCallback
from dpmcl.training.second_order import noise_warning
from dpmcl.training.setup import Setup
from dpmcl.training.spec import Spec
from dpmcl.training.step_size import StepSize
from dpmcl.training.storage import Storage, StoredCheckpoints
from dpmcl.training.tracking import tracking
from dpmcl.training.user_code import locating_errors


@dataclass(frozen=True)
class Job:
    """A method of a spec, and the seeds that are trained together.

    Attributes:
        method: Name of the method in the spec.
        seeds: Seeds of the replicas.
    """

    method: str
    seeds: tuple[int, ...]

    def among(self, seeds: Container[int]) -> "Job | None":
        """Return the part of the job whose seeds are among others; None if there is none.

        Args:
            seeds: Any seeds.
        """
        left = tuple(seed for seed in self.seeds if seed in seeds)
        return Job(self.method, left) if left else None


@dataclass(frozen=True, eq=False)
class Outcome:
    """Result of a job.

    Attributes:
        record: Errors, work, divergences, readings and predictions.
        state: Final state of the replicas.
        states: Final state of each replica as a file (`last_states`), from which a learner resumes.
        resumed: Whether the job resumed from a checkpoint.
        exact: Whether that checkpoint, if any, was made by the same engine, device and versions.
    """

    record: Record
    state: State
    states: tuple[bytes, ...]
    resumed: bool
    exact: bool


class Trainer:
    """Divides a spec into jobs, and runs jobs in this process.

    Args:
        spec: The spec.
        stream: Data of the spec: those that all replicas share, or else the first seed's.
        digest: Fingerprint of the data.
        folder: Run folder, for checkpoints; None writes no checkpoints.
        storage: Storage for checkpoints, in place of `folder`.
        like: Another trainer, whose data, network and engine this one shares. Its spec must have
            the same `trainer_key`.
    """

    def __init__(
        self,
        spec: Spec,
        stream: Stream,
        *,
        digest: str = "",
        folder: Path | None = None,
        storage: Storage | None = None,
        like: "Trainer | None" = None,
    ) -> None:
        self.spec, self.digest, self.folder, self.storage = spec, digest, folder, storage
        self._stream = stream
        self._flops: dict[str, int] = {}
        if like is not None:
            self.__dict__.update(stream=like.stream, model=like.model, engine=like.engine)

    @cached_property
    def device(self) -> torch.device:
        """Return the device that the spec names."""
        return device_of(self.spec.device)

    @cached_property
    def stream(self) -> Stream:
        """Return the data on the device."""
        return self._stream.to(self.device)

    @cached_property
    def model(self) -> Model:
        """Return the model of the spec's network, checked."""
        spec, stream = self.spec, self.stream
        dtype: torch.dtype = getattr(torch, spec.dtype)
        shape, outputs = stream.x.shape[1:], stream.outputs
        return Model.build(
            lambda: spec.network.build(shape, outputs),
            stream.kind,
            stream.example(dtype),
            outputs,
            dtype=dtype,
            device=self.device,
            images=stream.x.dtype == torch.uint8,
            precision=spec.precision,
        )

    @cached_property
    def engine(self) -> Engine:
        """Return the engine, which runs the updates of all replicas."""
        spec, example = self.spec, self.stream.example(self.model.dtype)
        batch = max(method.batch for method in spec.methods.values())
        return choose(spec.engine, self.model, example, replicas=spec.replicas, batch=batch)

    def jobs(self) -> list[Job]:
        """Return all jobs of the spec, also those for which results exist."""
        return [Job(name, group) for name in self.spec.methods for group in self.groups(name)]

    def groups(self, method: str) -> list[tuple[int, ...]]:
        """Return the seeds of each job of a method.

        Args:
            method: Name of the method in the spec.
        """
        seeds = self.spec.seeds
        size = group_size(self.engine, self.model, len(seeds), lambda: self.flops(method))
        return [seeds[first : first + size] for first in range(0, len(seeds), size)]

    def flops(self, method: str) -> int:
        """Return the FLOPs that train a replica, counted before training.

        Args:
            method: Name of the method in the spec.
        """
        if method not in self._flops:
            setup = self.setup(Job(method, self.spec.seeds[:1]))
            self._flops[method] = planned_work(setup).flops
        return self._flops[method]

    def longest_first(self, jobs: Sequence[Job]) -> list[Job]:
        """Return jobs by decreasing FLOPs, so that processes that share them end about together.

        Args:
            jobs: Jobs of this trainer.
        """
        if len({job.method for job in jobs}) == 1:  # `groups` puts a method's longest jobs first
            return list(jobs)
        return sorted(jobs, key=lambda job: -self.flops(job.method) * len(job.seeds))

    def checkpoints(self, job: Job) -> Checkpoints | None:
        """Return the checkpoints of a job; None if the trainer writes none.

        Args:
            job: The job.
        """
        origin = Origin(job.method, job.seeds, self.digest, self.engine.name, self.device.type)
        if self.storage is not None:
            return StoredCheckpoints(self.storage, origin)
        return None if self.folder is None else Checkpoints(self.folder, origin)

    def run(
        self,
        job: Job,
        keeping: Keeping,
        on_progress: ProgressCallback = lambda done, total: None,
    ) -> Outcome:
        """Train a job, from its last checkpoint if there is one, and return its outcome.

        If the replicas do not fit in memory together, they are trained in two halves.

        Args:
            job: The job.
            keeping: When to write checkpoints, and when to stop.
            on_progress: Called as on_progress(done, total), in updates of all replicas of the job.

        Raises:
            Stopped: `keeping.stop` returned True; a checkpoint has been written.
            DivergenceError: A replica diverged, and the spec's on_divergence is "stop".
            DeviceError: One replica does not fit in memory.
        """
        try:
            with (
                threads(self.spec.threads),
                report_out_of_memory(),
                arithmetic(self.spec.precision),
            ):
                return self._run(job, keeping, on_progress)
        except DeviceError as error:
            if len(job.seeds) == 1 or not is_out_of_memory(error.__cause__):
                raise
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        half = -(-len(job.seeds) // 2)
        first, second = (
            self.run(Job(job.method, seeds), keeping, _half_progress(on_progress, part))
            for part, seeds in enumerate((job.seeds[:half], job.seeds[half:]))
        )
        state = tree_map(lambda *leaf: torch.cat(leaf), first.state, second.state)
        return Outcome(
            merge(first.record, second.record),
            state,
            first.states + second.states,
            first.resumed or second.resumed,
            first.exact and second.exact,
        )

    def check(self, job: Job) -> None:
        """Check before training that a job can be trained.

        Args:
            job: The job.

        Raises:
            SpecError: As for `checks.check`, `Score` and `Arriving`.
            ModelError: As for `checks.check`.
        """
        setup = self.setup(job)
        check(setup, self.spec.monitor.drift)
        Score(self.spec.evaluation, setup)  # observers check their settings when they are made
        if self.spec.evaluation.arriving:
            Arriving(setup)
        warn_if_clipped(setup.stream)

    def setup(self, job: Job) -> Setup:
        """Return the setup of a job: its method, model, stream, splits, seeds and engine.

        Args:
            job: The job.
        """
        spec, stream = self.spec, self.stream
        if not spec.stream.shared:
            stream = read_stream(spec, job.seeds).to(self.device)
        stream, splits = scaled_and_split(spec, stream, job.seeds)
        method = spec.methods[job.method]
        with locating_errors(f"`prepare` of '{job.method}'", batched=False):
            model = method.modelled(self.model, stream.outputs)
        return Setup(
            method=method,
            model=model,
            stream=stream,
            splits=splits,
            seeds=job.seeds,
            engine=self.engine,
            weights=spec.weights_seeds(job.seeds),
            name=job.method,
        )

    def _run(self, job: Job, keeping: Keeping, on_progress: ProgressCallback) -> Outcome:
        spec, setup = self.spec, self.setup(job)
        return measured(
            setup,
            evaluation=spec.evaluation,
            monitor=spec.monitor,
            on_divergence=spec.on_divergence,
            keeper=Keeper(keeping, self.checkpoints(job)),
            on_progress=on_progress,
            more=[tracking(tracker, self.folder, _tracker_name(job)) for tracker in spec.track],
        )


def trainer_key(spec: Spec) -> str:
    """Return a text that identifies a trainer's data, network and engine.

    Args:
        spec: The spec of the trainer.
    """
    names = ("stream_name", "stream", "network_name", "network", "dtype", "precision", "device")
    batch = max(method.batch for method in spec.methods.values())
    return repr((*(getattr(spec, name) for name in names), spec.engine, spec.seeds, batch))


def measured(
    setup: Setup,
    *,
    evaluation: Evaluation,
    monitor: MonitorSettings,
    keeper: Keeper,
    on_progress: ProgressCallback = lambda done, total: None,
    on_divergence: Literal["freeze", "stop"] = "freeze",
    more: Sequence[Observer] = (),
) -> Outcome:
    """Train with the observers that the settings require, and return the outcome.

    Args:
        setup: Method, model, stream, splits, seeds and engine.
        evaluation: Settings of evaluation.
        monitor: Settings of the monitor.
        keeper: Loads the state from which training resumes, and writes checkpoints.
        on_progress: Called as on_progress(done, total), in updates of all replicas.
        on_divergence: "freeze" a replica that is no longer finite, or "stop" the run.
        more: Further observers, called after those that evaluate.
    """
    if warning := noise_warning(setup.method, setup.model.dtype):
        setup.warn(warning, once="noise")
    with setup.locating("`remark`", mapped=False):
        remark = setup.method.remark(setup.task_infos)
    if remark:
        setup.warn(remark, once="remark")
    rule, freeze = setup.method.rule, FreezeNonFinite(on_divergence)
    step_size = StepSize(rule) if isinstance(rule, Theorem) and rule.drift != "none" else None
    watching = Monitor(monitor, setup) if monitor.active else None
    arriving = Arriving(setup) if evaluation.arriving else None
    score, progress = Score(evaluation, setup), Progress(on_progress)
    wanted = (freeze, step_size, watching, arriving, score, *more, progress, keeper)
    observers = [observer for observer in wanted if observer is not None]
    run = train(setup, observers, keeper.resume(setup, first_state(setup)))
    work = dict.fromkeys(setup.seeds, with_bytes_kept(setup, run))
    diverged = {setup.seeds[replica]: divergence for replica, divergence in run.diverged.items()}
    readings = watching.readings(setup, run) if watching else None
    evaluated = evaluated_states(setup, after_evaluation_phases(setup, run, setup.tasks - 1))
    predictions = score.predictions(setup, evaluated)
    errors = score.errors(setup, run)
    if arriving:
        errors |= arriving.errors(setup, run)
    record = Record(errors, work, diverged, readings, predictions)
    states = last_states(setup, run, evaluated)
    return Outcome(record, run.replicas, states, keeper.resumed, keeper.exact)


def _tracker_name(job: Job) -> str:
    """Return the name of a job for a tracker."""
    return f"{job.method} seeds {job.seeds[0]}-{job.seeds[-1]}".replace(":", ".")


def _half_progress(on_progress: ProgressCallback, half: int) -> ProgressCallback:
    """Return the callback for a half of a job (0 or 1), which reports the job's progress."""
    return lambda done, total: on_progress(half * total + done, 2 * total)


def read_stream(spec: Spec, seeds: tuple[int, ...]) -> Stream:
    """Return the stream of a spec for some seeds.

    Args:
        spec: The spec.
        seeds: Seeds of the replicas, for streams whose replicas have different rows.

    Raises:
        DataError: The stream cannot be built, or the spec's dtype cannot tell its inputs apart.
    """
    stream = _build_stream(spec, seeds)
    if spec.stream_name == "python" or not plugins.is_ours("stream", spec.stream_name):
        broken = broken_promise(stream, seeds, partial(_build_stream, spec))
        if broken is not None:
            raise DataError(f"Stream '{spec.stream_name}' must promise that {broken}.")
    check_digits(stream, getattr(torch, spec.dtype))
    return stream


def fingerprint_of_data(stream: Stream) -> str:
    """Return the fingerprint of a stream's data, which does not depend on how they are scaled.

    Args:
        stream: The stream.
    """
    return replace(stream, scale=None).digest()


def _build_stream(spec: Spec, seeds: tuple[int, ...]) -> Stream:
    """Return the stream for some seeds; errors in code outside the package name the stream."""
    with forked(0):  # libraries that read data may draw from Python's or NumPy's generator
        try:
            return spec.stream.build(seeds)
        except (DpmclError, MemoryError):
            raise
        except Exception as error:
            if plugins.is_ours("stream", spec.stream_name):
                raise
            raise DataError(
                f"Stream '{spec.stream_name}' cannot be built: {type(error).__name__}: "
                f"{reason(error)}; fix its code, or what it reads."
            ) from error


def scaled_and_split(spec: Spec, stream: Stream, seeds: tuple[int, ...]) -> tuple[Stream, Splits]:
    """Return a stream scaled by the training rows of some seeds, and the splits of these seeds.

    Args:
        spec: The spec.
        stream: Data of the spec.
        seeds: Seeds of the replicas.
    """
    held_out = spec.evaluation.held_out
    splits = split(stream, spec.split_seeds(seeds), spec.stream.split, held_out)
    return fit_scale(stream, splits), splits
