"""The loops that a user of PyTorch would write for ER and DPMCL, without special tuning."""

import copy
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.measure import Contestant, seconds_of
from benchmarks.problems import Problem
from dpmcl import Method

Rows = tuple[Tensor, Tensor]


def contestants(problem: Problem, method: str, default: int) -> list[Contestant]:
    """Return the loop of a method on PyTorch's default number of threads, and on one."""
    run = PlainDPMCL(problem) if method == "dpmcl" else Plain(problem)
    name = f"plain loop, {default} thread{'s' * (default != 1)} (default)"
    return [
        Contestant(name, run, threads=default, facts={"kind": "plain"}),
        Contestant("plain loop, 1 thread", run, threads=1, facts={"kind": "plain, 1 thread"}),
    ]


class Plain:
    """ER: h and g in an nn.Sequential, an optimiser of torch.optim and a shuffled DataLoader."""

    method = "er"

    def __init__(self, problem: Problem) -> None:
        self.settings = problem.method(self.method)
        self.device = problem.device
        self.h, self.g = (module.to(self.device) for module in problem.modules())
        self.model = nn.Sequential(self.h, self.g)
        self.optimiser = optimiser(self.settings, self.model)
        self.cost = cost(problem)
        data = TensorDataset(*inputs_and_targets(problem))
        self.loader = DataLoader(data, self.settings.batch, shuffle=True, drop_last=True)

    def __call__(self, updates: int) -> float:
        return seconds_of(lambda: self.train(updates), self.device)

    def train(self, updates: int) -> None:
        """Make updates of ER; the loader's rows are those of all tasks."""
        for rows in itertools.islice(self.batches(), updates):
            self.step(*rows)

    def step(self, x: Tensor, y: Tensor) -> None:
        """Make one step of the optimiser on a batch."""
        self.optimiser.zero_grad()
        self.cost(self.model(x), y).backward()
        self.optimiser.step()

    def batches(self) -> Iterator[Rows]:
        """Yield batches without end."""
        while True:
            for x, y in self.loader:
                yield x.to(self.device), y.to(self.device)


class PlainDPMCL(Plain):
    """Algorithm 1 in plain PyTorch, with one iterator for new rows and one for old ones."""

    method = "dpmcl"

    def train(self, updates: int) -> None:
        """Make iterations of Algorithm 1."""
        for new, old in itertools.islice(zip(self.batches(), self.batches(), strict=True), updates):
            self.iterate(new, old)

    def iterate(self, new: Rows, old: Rows) -> None:
        """Make one iteration: a step on new rows, a look ahead with a copy of g, a step on all."""
        self.step(*new)
        x, y = (torch.cat(pair) for pair in zip(old, new, strict=True))
        features = self.h(x)
        ahead = self.look_ahead(features.detach(), y)
        outputs = self.g(features)
        J_P = self.cost(outputs[: len(old[0])], old[1])
        J_PN, J_B = self.cost(outputs, y), self.cost(ahead(features), y)
        self.optimiser.zero_grad()
        (J_P + J_PN - J_B).backward()
        self.optimiser.step()

    def look_ahead(self, features: Tensor, y: Tensor) -> nn.Module:
        """Return a copy of g after zeta steps on all rows, with a new optimiser."""
        ahead = copy.deepcopy(self.g)
        inner = optimiser(self.settings, ahead)
        for _ in range(self.settings.zeta):
            inner.zero_grad()
            self.cost(ahead(features), y).backward()
            inner.step()
        return ahead.requires_grad_(False)


def optimiser(method: Method, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimiser of torch.optim with the name of the method's optimiser."""
    rule: type[torch.optim.Optimizer] = getattr(torch.optim, type(method.rule).__name__)
    return rule(model.parameters(), lr=method.lr)


def cost(problem: Problem) -> nn.Module:
    """Return the paper's cost as a module of torch.nn."""
    return nn.CrossEntropyLoss() if problem.model.kind == "classification" else nn.MSELoss()


def inputs_and_targets(problem: Problem) -> Rows:
    """Return all rows in a user's usual form: floats on the CPU, images in [0, 1]."""
    x, y = problem.stream.x.cpu(), problem.stream.y.cpu()
    return (x.to(torch.float32) / 255 if x.dtype == torch.uint8 else x), y
