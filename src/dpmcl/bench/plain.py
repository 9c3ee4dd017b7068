"""The loop that a user of PyTorch would write: neither tuned nor hampered."""

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dpmcl.bench.measure import Contestant, timed
from dpmcl.bench.problems import Problem
from dpmcl.methods._method import Method


def contestants(problem: Problem, default: int) -> list[Contestant]:
    """The loop on PyTorch's default number of threads, and on one."""
    run = Plain(problem)
    name = f"plain loop, {default} thread{'s' * (default != 1)} (default)"
    return [
        Contestant(name, run, threads=default, facts={"kind": "plain"}),
        Contestant("plain loop, 1 thread", run, threads=1, facts={"kind": "plain, 1 thread"}),
    ]


class Plain:
    """h and g in one nn.Sequential, an optimiser of torch.optim, a DataLoader that shuffles."""

    def __init__(self, problem: Problem) -> None:
        method = problem.method("er")
        self.device = problem.device
        self.model = nn.Sequential(*problem.modules()).to(self.device)
        self.optimiser = optimiser(method, self.model)
        self.cost = cost(problem)
        data = TensorDataset(*inputs_and_targets(problem))
        self.loader = DataLoader(data, batch_size=method.batch, shuffle=True, drop_last=True)

    def __call__(self, updates: int) -> float:
        return timed(lambda: self._train(updates), self.device)

    def _train(self, updates: int) -> None:
        for x, y in itertools.islice(self._batches(), updates):
            x, y = x.to(self.device), y.to(self.device)
            self.optimiser.zero_grad()
            loss = self.cost(self.model(x), y)
            loss.backward()
            self.optimiser.step()

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from self.loader


def optimiser(method: Method, model: nn.Module) -> torch.optim.Optimizer:
    """The method's optimiser, as torch.optim has it under the same name."""
    found: torch.optim.Optimizer = getattr(torch.optim, type(method.rule).__name__)(
        model.parameters(), lr=method.lr
    )
    return found


def cost(problem: Problem) -> nn.Module:
    """The paper's costs, as torch.nn has them."""
    return nn.CrossEntropyLoss() if problem.model.kind == "classification" else nn.MSELoss()


def inputs_and_targets(problem: Problem) -> tuple[Tensor, Tensor]:
    """All rows as a user would have them: floats on the CPU, images in [0, 1]."""
    x, y = problem.stream.x.cpu(), problem.stream.y.cpu()
    return (x.to(torch.float32) / 255 if x.dtype == torch.uint8 else x), y
