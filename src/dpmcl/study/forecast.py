"""List the jobs of a study: which are missing, and about how long they take."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from dpmcl.core.threads import threads
from dpmcl.study import identity
from dpmcl.study.runs import Planned
from dpmcl.training.job import Job, Trainer, read_stream, trainer_key
from dpmcl.training.loop import first_state, learn_task
from dpmcl.training.observer import Observer
from dpmcl.training.setup import Setup
from dpmcl.training.state import Position, RunState

_UPDATES = 3
"""Number of updates that are timed. The one before them is not."""


class Forecast(NamedTuple):
    """A job of a study.

    Attributes:
        run: Name of the job's run.
        job: The job, of the seeds whose results are missing if there are any.
        missing: True if there are any.
        seconds: Time of its updates on one core, estimated from a few of them; evaluation and
            reading of data are not included.
    """

    run: str
    job: Job
    missing: bool
    seconds: float


def forecast(runs: Sequence[Planned]) -> list[Forecast]:
    """Return all jobs of several runs.

    Runs that differ only in numbers that do not change the cost, such as rates, are measured once.

    Args:
        runs: The runs.

    Raises:
        FolderError: A folder holds a run of another spec.
    """
    built: dict[str, Trainer] = {}
    groups: dict[str, list[tuple[int, ...]]] = {}
    seconds: dict[tuple[str, int], float] = {}
    out = []
    for planned in runs:
        spec = planned.spec
        key = trainer_key(spec)
        if key not in built:
            built[key] = Trainer(spec, read_stream(spec, spec.seeds[:1]))
        trainer = Trainer(spec, built[key].stream, like=built[key])
        done: dict[str, set[int]] = {}
        if planned.folder is not None:
            records = identity.read_to_extend(planned.folder, spec).records
            done = {name: {*record.test.seeds} for name, record in records.items()}
        for name, method in spec.methods.items():
            kind = repr((key, type(method), _cost_settings(method.to_table())))
            if kind not in groups:
                groups[kind] = trainer.groups(name)
            missing = {*spec.seeds} - done.get(name, set())
            for job in (Job(name, seeds) for seeds in groups[kind]):
                left = job.among(missing) or job
                group = kind, len(left.seeds)
                if group not in seconds:
                    seconds[group] = _seconds(trainer.setup(left))
                is_missing = left.seeds[0] in missing
                out.append(Forecast(planned.name, left, is_missing, seconds[group]))
    return out


def _cost_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a method that may change the cost of an update: all but floats."""
    return {key: value for key, value in settings.items() if not isinstance(value, float)}


class _Enough(Exception):
    """Ends a measurement."""


class _Timer(Observer):
    """Skips one update, times the next ones, and ends the run."""

    def __init__(self) -> None:
        self.began, self.updates, self.seconds = 0.0, 0, 0.0

    def stop(self, setup: Setup, position: Position, stop: int) -> int:
        return min(stop, position.update + 1)

    def after_segment(self, setup: Setup, run: RunState, segment: Any) -> RunState:
        now = time.perf_counter()
        if self.updates:
            self.seconds += now - self.began
        self.began = now
        self.updates += 1
        if self.updates > _UPDATES:
            raise _Enough
        return run


def _seconds(setup: Setup) -> float:
    """Return an estimate of the time of all updates of a job, in seconds."""
    timer = _Timer()
    with threads(1), suppress(_Enough):
        learn_task(setup, first_state(setup), [timer])
    per_update = timer.seconds / max(timer.updates - 1, 1)
    return per_update * setup.updates_before(Position(setup.tasks))


def forecast_lines(jobs: Sequence[Forecast], processes: int) -> list[str]:
    """Return lines that list jobs, and the time that the missing ones take together.

    Args:
        jobs: Jobs, from `forecast`.
        processes: Number of processes that run jobs side by side.
    """
    lines = []
    for entry in jobs:
        seeds = entry.job.seeds
        first, last = seeds[0], seeds[-1]
        if last - first + 1 > len(seeds) or len(seeds) == 1:
            span = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        else:
            span = f"seeds {first} to {last}"
        state = _duration(entry.seconds) if entry.missing else "done"
        lines.append(f"{entry.run}: {entry.job.method}, {span}: {state}")
    missing = [entry.seconds for entry in jobs if entry.missing]
    total = max([sum(missing) / processes, *missing], default=0.0)
    lines.append(
        f"{len(missing)} of {len(jobs)} jobs are missing: about {_duration(total)} with "
        f"{processes} process{'es' * (processes != 1)}, without evaluation."
    )
    return lines


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.{seconds < 10:d}f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
