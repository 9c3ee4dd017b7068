"""The paper's four networks with what they are trained on: presets, and data made up on the spot.

Network, batch, optimiser, counts and tasks are read from the preset `paper-NAME`. A row's values
do not change how long an update takes, so no data file is needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from dpmcl.core.convolution import Convolutions
from dpmcl.core.model import Model
from dpmcl.core.precision import Precision
from dpmcl.data.splits import split
from dpmcl.data.stream import Stream
from dpmcl.data.task_info import TaskInfo, task_infos
from dpmcl.methods._method import Method
from dpmcl.study.api import Request
from dpmcl.training.spec import Spec

NETWORKS = ("sine", "mnist", "omniglot", "cifar10")

_ROWS = 4096  # made up; enough that a batch seldom finds its rows in the nearest cache
_SINE_TASKS = 8  # of SINE's own waves, 4272 rows
_DRAWINGS = 20  # of each character of Omniglot (Lake et al., 2015)


@dataclass(frozen=True, eq=False)
class Problem:
    """A network of the paper, ready to be trained.

    spec: the preset. stream: made-up rows on the device. rows: of the real data, all tasks.
    """

    name: str
    spec: Spec
    stream: Stream
    model: Model
    rows: int

    @property
    def device(self) -> torch.device:
        """Where model and rows are."""
        return self.model.device

    @cached_property
    def infos(self) -> tuple[TaskInfo, ...]:
        """What a method is told of each task."""
        return task_infos(self.stream, split(self.stream, (0,), self.spec.stream.split))

    def method(self, name: str) -> Method:
        """A method with the preset's settings."""
        found: Method = self.spec.methods[name]
        return found

    def modules(self) -> tuple[nn.Module, nn.Module]:
        """h and g, newly initialised, on the CPU."""
        return self.spec.network.build(self.stream.x.shape[1:], self.stream.outputs)


def problem(
    name: str,
    device: torch.device,
    precision: Precision | None = None,
    convolutions: Convolutions | None = None,
) -> Problem:
    """The problem of a name in NETWORKS, on a device.

    precision: of a spec. convolutions: of `Model.build`.
    """
    spec = Request(f"paper-{name}").update(precision=precision).spec()
    dtype: torch.dtype = getattr(torch, spec.dtype)
    stream, rows = _sine(spec) if name == "sine" else _images(name, spec)
    stream = stream.to(device)
    shape = stream.x.shape[1:]
    model = Model.build(
        lambda: spec.network.build(shape, stream.outputs),
        stream.kind,
        stream.example(dtype),
        stream.outputs,
        dtype,
        device,
        convolutions=convolutions,
        precision=spec.precision,
    )
    return Problem(name, spec, stream, model, rows)


def _sine(spec: Spec) -> tuple[Stream, int]:
    settings: Any = spec.stream
    stream = replace(settings, tasks=_SINE_TASKS).build((0,))
    return stream, settings.tasks * settings.rows


def _images(name: str, spec: Spec) -> tuple[Stream, int]:
    """Noise in the shape of a set's images, and how many images the set has."""
    settings: Any = spec.stream
    classes = settings.tasks * settings.classes_per_task
    shape: Sequence[int]
    if name == "cifar10":
        shape, rows = (3, settings.size, settings.size), 60_000
    else:
        shape, rows = (1, 28, 28), 70_000 if name == "mnist" else classes * _DRAWINGS
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (_ROWS, *shape), generator=generator, dtype=torch.uint8)
    return Stream.from_arrays(x, torch.arange(_ROWS) % classes, name=name), rows
