"""Kill runs at random moments, and compare their results with those of uninterrupted runs.

    python -m benchmarks.resume_check [--times 200] [--seed 0] [--out DIR]

Six methods run in one folder, on digits (in one process) or SINE (in two), two tasks, two replicas,
with either engine, dropout, and a reservoir that is smaller than a task. A process is killed with
SIGKILL a random time after it began to train. Another process resumes the run in the same folder,
and is killed as well, until one reaches the end. Every file of results must then be equal byte for
byte. Prints the number of kills in each case; exits with status 1 if any file differs.
"""

import argparse
import logging
import multiprocessing
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import dpmcl
from dpmcl.networks._network import NetworkSettings

Table = dict[str, Any]

METHODS = ("naive", "er", "oml", "cml", "anml", "dpmcl")
ENGINES = ("batched", "looped")
RESULTS = ("errors.parquet", "work.json", "spec.toml", "stream.json", "parameters/*/*.safetensors")
RESUMED = "goes on from its last checkpoint"  # in the log of a run that is resumed
PRELOADED = [  # imported by the fork server; a run's first update would import them, for seconds
    "dpmcl.study.runs",
    "dpmcl.study.api",
    "torch._dynamo",
    "pyarrow.parquet",
    "sklearn.datasets",
]
LONGEST = 300.0  # seconds that a process may take


def fork_server() -> ForkServerContext:
    """Return the context of processes that are forked from one that has imported the package."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


@dataclass(frozen=True, kw_only=True)
class Dropped(NetworkSettings):
    """The dense network with dropout after its second layer, so that lost draws would show."""

    def build(self, shape: Sequence[int], outputs: int) -> tuple[nn.Module, nn.Module]:
        inputs = int(torch.tensor(shape).prod())
        representation = nn.Sequential(
            nn.Flatten(),
            nn.Linear(inputs, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, self.hidden),
            nn.ReLU(),
            nn.Dropout(0.3),
        )
        prediction = nn.Sequential(
            nn.Linear(self.hidden, self.hidden), nn.ReLU(), nn.Linear(self.hidden, outputs)
        )
        return representation, prediction


STREAMS: dict[str, Table] = {
    "digits": {"name": "digits", "tasks": 2, "classes_per_task": 1},
    "sine": {"name": "sine", "tasks": 2, "rows": 40, "outputs": 4},
}
WORKERS = {"digits": 1, "sine": 2}
NETWORKS: dict[str, Table] = {
    "digits": {"name": "benchmarks.resume_check:Dropped", "hidden": 16},
    "sine": {"name": "benchmarks.resume_check:Dropped", "hidden": 8},
}


def spec(stream: str, engine: str, methods: Sequence[str] = METHODS) -> Table:
    """Return the spec of a run of a few seconds.

    Its phases are longer than a segment, and its memory is small enough to drop rows.
    """
    return {
        "replicas": 2,
        "device": "cpu",
        "engine": engine,
        "workers": WORKERS[stream],
        "stream": STREAMS[stream],
        "network": NETWORKS[stream],
        "training": {"optimiser": "adam", "lr": 0.003, "batch": 8, "updates": 52, "memory": 15},
        "methods": {name: {"zeta": 1} if name == "dpmcl" else {} for name in methods},
    }


def run_study(table: Table, folder: Path, seconds: float, started: Connection) -> None:
    """Run the study or the rest of it, in a child process; report on `started` when it trains."""
    torch.set_num_threads(1)
    log = logging.FileHandler(folder.with_suffix(".log"))
    logging.getLogger("dpmcl").addHandler(log)
    reported = False

    def progress(*_: object) -> None:
        nonlocal reported
        if not reported:
            started.send(None)
            reported = True

    dpmcl.run(table, out=folder, progress=progress, checkpoint_seconds=seconds)


def run_and_kill(
    table: Table, folder: Path, seconds: float, delay: float | None
) -> tuple[bool, float]:
    """Run a study in a process, and kill it `delay` seconds after it began to train.

    Returns:
        Whether it was still running when it was killed, and the seconds that it trained.

    Raises:
        RuntimeError: The run failed.
    """
    context = fork_server()
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=run_study, args=(table, folder, seconds, writer))
    process.start()
    writer.close()
    try:
        wait([reader, process.sentinel], LONGEST)
        start = time.monotonic()
        process.join(LONGEST if delay is None else delay)
        if process.exitcode is None:
            process.kill()
            process.join()
    finally:
        process.kill()
        reader.close()
    if delay is not None and process.exitcode == -signal.SIGKILL:
        return True, time.monotonic() - start
    if process.exitcode != 0:
        raise RuntimeError(f"A run in {folder} ended with status {process.exitcode}.")
    return False, time.monotonic() - start


class Case(NamedTuple):
    """A stream, an engine, and the methods of a run."""

    stream: str
    engine: str
    methods: tuple[str, ...] = METHODS


class Whole(NamedTuple):
    """An uninterrupted run: its files, and the seconds that it trained."""

    files: Mapping[str, bytes]
    seconds: float


def run_whole(case: Case, folder: Path) -> Whole:
    """Run a case to its end in one go."""
    _, seconds = run_and_kill(spec(*case), folder, 60.0, None)
    return Whole(results(folder), seconds)


def results(folder: Path) -> dict[str, bytes]:
    """Return the contents of the files of results, by path relative to the folder."""
    paths = [path for pattern in RESULTS for path in sorted(folder.glob(pattern))]
    visible = [path for path in paths if not path.name.startswith(".")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in visible}


def temporaries(folder: Path) -> list[Path]:
    """Return the temporary files that killed processes were writing; these are never read."""
    locks = (".lock", ".lock.json")
    return [p for p in folder.rglob(".*") if p.is_file() and p.name not in locks]


class Kill(NamedTuple):
    """A kill of a running process, and whether the next process resumed from a checkpoint."""

    case: Case
    resumed: bool


def kill_repeatedly(
    case: Case, folder: Path, reference: Whole, rng: random.Random, *, most_kills: int, share: float
) -> tuple[list[Kill], list[str], int]:
    """Kill one run up to `most_kills` times, then let it finish.

    Args:
        case: Stream, engine and methods.
        folder: Run folder.
        reference: Uninterrupted run of the same case.
        rng: Generator of the moments at which processes are killed.
        most_kills: Largest number of kills.
        share: Longest time that a process trains before it is killed, as a share of the complete
            run's.

    Returns:
        The kills, the files that differ, and the number of temporary files left behind.
    """
    kills: list[Kill] = []
    log = folder.with_suffix(".log")
    killed = True
    while killed:
        before = log.stat().st_size if log.exists() else 0
        delay = rng.uniform(0, share * reference.seconds) if len(kills) < most_kills else None
        killed, _ = run_and_kill(spec(*case), folder, rng.choice([0.0, 0.0, 0.05]), delay)
        if kills and RESUMED in log.read_text("utf-8")[before:]:
            kills[-1] = kills[-1]._replace(resumed=True)
        if killed:
            kills.append(Kill(case, False))
    files = results(folder)
    names = sorted({*files, *reference.files})
    different = [name for name in names if files.get(name) != reference.files.get(name)]
    if (folder / "checkpoints").exists():
        different.append("checkpoints (not removed)")
    return kills, different, len(temporaries(folder))


def check(
    times: int, cases: Sequence[Case], seed: int, root: Path, share: float = 0.2
) -> tuple[list[Kill], dict[str, list[str]], int]:
    """Kill processes exactly `times` times, divided among the cases.

    Returns:
        The kills, the files that differ by folder, and the number of temporary files left behind.
    """
    rng = random.Random(seed)
    whole = {case: run_whole(case, root / f"whole-{case.stream}-{case.engine}") for case in cases}
    left = {case: times // len(cases) + (i < times % len(cases)) for i, case in enumerate(cases)}
    kills: list[Kill] = []
    different: dict[str, list[str]] = {}
    temporary = 0
    while any(left.values()):
        case = rng.choice([case for case in cases if left[case]])
        folder = root / f"killed-{len(different)}-{case.stream}-{case.engine}"
        new_kills, different[folder.name], left_behind = kill_repeatedly(
            case, folder, whole[case], rng, most_kills=left[case], share=share
        )
        kills += new_kills
        temporary += left_behind
        left[case] -= len(new_kills)
        if not different[folder.name]:
            shutil.rmtree(folder)
    return kills, different, temporary


def report(
    kills: Sequence[Kill], different: Mapping[str, list[str]], temporary: int, seconds: float
) -> str:
    """Return the summary."""
    cases = Counter(f"{kill.case.stream} {kill.case.engine}" for kill in kills)
    failed = {name: files for name, files in different.items() if files}
    lines = [
        f"{len(kills)} processes killed while they ran, in {len(different)} runs, {seconds:.0f} s",
        *(f"  {name:<16} {count:>4}" for name, count in sorted(cases.items())),
        f"after {sum(kill.resumed for kill in kills)} of them the next process went on from a "
        "checkpoint (the others had none yet, or were killed before they came so far)",
        f"{len(different) - len(failed)} of {len(different)} runs equal byte for byte: "
        f"{', '.join(RESULTS)}",
        *(f"  {name} differs in {', '.join(files)}" for name, files in failed.items()),
        f"{temporary} temporary files of killed processes stayed in the run folders",
        f"dpmcl {version('dpmcl')}, torch {torch.__version__}, Python "
        f"{platform.python_version()}, {platform.system()} {platform.machine()}, CPU, one thread",
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="where runs that differ are kept")
    arguments = parser.parse_args()
    cases = [Case(stream, engine) for stream in STREAMS for engine in ENGINES]
    root = arguments.out or Path(tempfile.mkdtemp(prefix="resume-check-"))
    root.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    kills, different, temporary = check(arguments.times, cases, arguments.seed, root)
    print(report(kills, different, temporary, time.monotonic() - start))
    failed = any(different.values())
    if not failed and arguments.out is None:
        shutil.rmtree(root)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
