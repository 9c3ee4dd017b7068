"""Avalanche's Naive and Replay on the same network, batch, optimiser and rows, if installed."""

import importlib
import importlib.metadata
import importlib.util
import warnings
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.measure import Contestant, seconds_of
from benchmarks.plain import cost, inputs_and_targets, optimiser
from benchmarks.problems import Problem

Strategy = Literal["naive", "replay"]

_PAST = 32  # batches that Replay has seen before it is timed


def version() -> str | None:
    """Return avalanche-lib's version, or None if it is not installed."""
    if importlib.util.find_spec("avalanche") is None:
        return None
    try:
        return importlib.metadata.version("avalanche-lib")
    except importlib.metadata.PackageNotFoundError:
        return None


def contestants(problem: Problem) -> list[Contestant]:
    """Return both strategies, on one thread; an empty list if avalanche-lib is not installed."""
    if version() is None:
        return []
    strategies: tuple[Strategy, ...] = ("naive", "replay")
    return [
        Contestant(f"avalanche {name}", Avalanche(problem, name), facts={"kind": "avalanche"})
        for name in strategies
    ]


class Avalanche:
    """One of Avalanche's strategies, without metrics and loggers.

    Naive trains on the new rows only. Half of a batch of Replay is new rows and half is from its
    memory, so it has as many rows as a batch of ER. A timing is one experience with one batch for
    each update. Replay is first trained on another experience, so that its memory is not empty.
    """

    def __init__(self, problem: Problem, strategy: Strategy) -> None:
        self.problem, self.replays = problem, strategy == "replay"
        self.method = problem.method("er")
        self.x, self.y = inputs_and_targets(problem)

    def __call__(self, updates: int) -> float:
        batch = self.method.batch // 2 if self.replays else self.method.batch
        with warnings.catch_warnings(record=True):  # Avalanche overrides the warning filters
            strategy = self._strategy(batch)
            first, second = self._experiences(_PAST * batch, updates * batch)
            if self.replays:
                strategy.train(first)
            before = strategy.clock.train_iterations
            seconds = seconds_of(lambda: strategy.train(second), self.problem.device)
        iterations: int = strategy.clock.train_iterations - before
        return seconds * updates / iterations

    def _strategy(self, batch: int) -> Any:
        model = nn.Sequential(*self.problem.modules())
        plugins = []
        if self.replays:
            plugin: Any = importlib.import_module("avalanche.training.plugins").ReplayPlugin
            size = min(self.method.memory, len(self.x))
            plugins.append(plugin(size, batch_size=batch, batch_size_mem=batch))
        naive: Any = importlib.import_module("avalanche.training.supervised").Naive
        return naive(  # Avalanche's Replay is Naive with that plugin
            model=model,
            optimizer=optimiser(self.method, model),
            criterion=cost(self.problem),
            train_mb_size=batch,
            train_epochs=1,
            device=self.problem.device,
            evaluator=None,
            plugins=plugins,
        )

    def _experiences(self, *rows: int) -> Any:
        """Return one experience for each number of rows."""
        scenarios: Any = importlib.import_module("avalanche.benchmarks.scenarios.dataset_scenario")
        sets = [self._dataset(torch.arange(count) % len(self.x)) for count in rows]
        return scenarios.benchmark_from_datasets(train=sets).train_stream

    def _dataset(self, row: Tensor) -> Any:
        utils: Any = importlib.import_module("avalanche.benchmarks.utils")
        flat: Any = importlib.import_module("avalanche.benchmarks.utils.flat_data")
        labels = utils.DataAttribute(
            flat.ConstantSequence(0, len(row)), "targets_task_labels", use_in_getitem=True
        )
        data = TensorDataset(self.x[row], self.y[row])
        return utils.AvalancheDataset([data], data_attributes=[labels])
