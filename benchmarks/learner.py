"""Measure a learner: ten thousand chunks, a head that grows, and its cost beyond `learn_task`.

python -m benchmarks.learner [--chunks 10000] [--out benchmarks/learner.json]
"""

import argparse
import json
import platform
import resource
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from dpmcl import Learner
from dpmcl.learner import chunks
from dpmcl.learner.knowledge import Knowledge, task_infos_of, with_body
from dpmcl.learner.pool import Examples, chunk_stream
from dpmcl.training.loop import learn_task
from dpmcl.training.state import Position


def endless_stream(chunks: int) -> dict[str, float]:
    """Return time and memory of chunks of ten rows of twenty columns, with two updates each."""
    rng, learner = np.random.default_rng(0), Learner(updates=2, memory=1000)
    times, peaks = [], []
    for chunk in range(chunks):
        x, y = rng.normal(size=(10, 20)), rng.integers(0, 5, 10)
        start = time.perf_counter()
        learner.learn(x, y)
        times.append(1e3 * (time.perf_counter() - start))
        if chunk in (chunks // 5, chunks - 1):
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    tenth = chunks // 10
    return {
        "chunks": chunks,
        "ms a chunk, second tenth": round(median(times[tenth : 2 * tenth]), 3),
        "ms a chunk, last tenth": round(median(times[-tenth:]), 3),
        "peak MiB after a fifth": round(peaks[0], 1),
        "peak MiB at the end": round(peaks[1], 1),
    }


def overhead(rounds: int = 15) -> dict[str, float]:
    """Return the times of `learn` and `learn_task` on 100 rows of 20 columns, with 100 updates."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(100, 20)), rng.integers(0, 5, 100)
    learner = Learner(updates=100, memory=1000, classes=range(5))
    for _ in range(12):  # fills the memory and traces the update
        learner.learn(x, y)
    alone, whole = [], []
    for _ in range(rounds):
        known = learner._known
        assert isinstance(known, Knowledge)
        chunk = {"train": Examples(torch.from_numpy(x), torch.from_numpy(y))}
        stream, splits = chunk_stream(
            known.setup.stream, known.held, chunk, number=known.chunks, replicas=1
        )
        setup = known.setup.with_rows(stream, splits, task_infos_of(known, stream, splits))
        run = replace(known.run, position=Position(1))
        torch.set_num_threads(1)
        start = time.perf_counter()
        learn_task(setup, run)
        alone.append(1e3 * (time.perf_counter() - start))
        start = time.perf_counter()
        learner.learn(x, y)
        whole.append(1e3 * (time.perf_counter() - start))
    return {
        "ms learn_task alone": round(median(alone), 2),
        "ms learn": round(median(whole), 2),
        "ratio": round(median(b / a for a, b in zip(alone, whole, strict=True)), 3),
    }


def frozen_body(updates: int = 100) -> dict[str, float]:
    """Return the time of 64 images behind a frozen body, with and without keeping its features."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    body = nn.Sequential(*layers, nn.Flatten())
    module = nn.Sequential(body, nn.Linear(1024, 5))
    x, y = torch.rand(64, 3, 32, 32), torch.arange(64) % 5
    times = {}
    for name, keep in (("kept", with_body), ("each time", lambda config, form, x: form)):
        chunks.with_body = keep
        learner = Learner(module, frozen=["0"], updates=updates).learn(x, y)
        start = time.perf_counter()
        learner.learn(x, y)
        times[name] = time.perf_counter() - start
    chunks.with_body = with_body
    return {
        "ms a chunk, features kept": round(1e3 * times["kept"], 1),
        "ms a chunk, features each time": round(1e3 * times["each time"], 1),
        "times faster": round(times["each time"] / times["kept"], 1),
    }


def grown_head(seeds: int = 10) -> dict[str, float]:
    """Compare a head that grew from 2 to 10 classes of digits with one of 10 from the start."""
    pixels, labels = load_digits(return_X_y=True)
    x, errors = (pixels / 16).astype("float32"), {}
    for name, classes in (("from the start", range(10)), ("grown", None)):
        errors[name] = np.zeros(seeds)
        for seed in range(seeds):
            network = {"name": "mlp", "hidden": 32}
            learner = Learner(network, classes=classes, seed=seed, updates=150, memory=500)
            for k in range(0, 10, 2):
                new = np.flatnonzero((labels[:1400] >= k) & (labels[:1400] < k + 2))
                learner.learn(x[new], labels[new])
            errors[name][seed] = learner.evaluate(x[1400:], labels[1400:])
    gap = errors["grown"] - errors["from the start"]
    return {
        "error, 10 classes from the start": round(errors["from the start"].mean(), 4),
        "error, grown from 2 to 10": round(errors["grown"].mean(), 4),
        "difference": round(gap.mean(), 4),
        "standard error over 10 seeds": round(gap.std(ddof=1) / seeds**0.5, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--out", type=Path)
    settings = parser.parse_args()
    report = {
        "overhead": overhead(),
        "frozen": frozen_body(),
        "grown": grown_head(),
        "endless": endless_stream(settings.chunks),
        "torch": torch.__version__,
        "machine": platform.machine(),
    }
    text = json.dumps(report, indent=1)
    print(text)
    if settings.out:
        settings.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
