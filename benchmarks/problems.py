"""The paper's four networks, with generated data of the same shapes.

Network, batch, optimiser, counts and tasks come from the preset `paper-NAME`. The values of a row
do not change how long an update takes, so no data file is needed.
"""

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

_ROWS = 4096  # enough that a batch's rows are seldom in the nearest cache
_SINE_TASKS = 8  # SINE needs no files, so these are its own waves, 4272 rows


@dataclass(frozen=True, eq=False)
class Problem:
    """A network of the paper, ready to be trained: the preset, rows on the device, the model."""

    name: str
    spec: Spec
    stream: Stream
    model: Model

    @property
    def device(self) -> torch.device:
        """Device of model and rows."""
        return self.model.device

    @cached_property
    def infos(self) -> tuple[TaskInfo, ...]:
        """The `TaskInfo` of each task."""
        return task_infos(self.stream, split(self.stream, (0,), self.spec.stream.split))

    def method(self, name: str) -> Method:
        """Return a method with the preset's settings."""
        method: Method = self.spec.methods[name]
        return method

    def modules(self) -> tuple[nn.Module, nn.Module]:
        """Return h and g on the CPU, newly initialised."""
        return self.spec.network.build(self.stream.x.shape[1:], self.stream.outputs)


def problem(
    name: str,
    device: torch.device,
    precision: Precision | None = None,
    convolutions: Convolutions | None = None,
) -> Problem:
    """Return the problem with a name in NETWORKS.

    Args:
        name: "sine", "mnist", "omniglot" or "cifar10".
        device: Device of model and rows.
        precision: Precision of products, as in a spec; None for full float32.
        convolutions: Form of convolutions, as in `Model.build`.
    """
    spec = Request(f"paper-{name}").update(precision=precision).spec()
    dtype: torch.dtype = getattr(torch, spec.dtype)
    stream = (_sine(spec) if name == "sine" else _images(name, spec)).to(device)
    shape = stream.x.shape[1:]
    model = Model.build(
        lambda: spec.network.build(shape, stream.outputs),
        stream.kind,
        stream.example(dtype),
        stream.outputs,
        dtype=dtype,
        device=device,
        convolutions=convolutions,
        precision=spec.precision,
    )
    return Problem(name, spec, stream, model)


def _sine(spec: Spec) -> Stream:
    settings: Any = spec.stream
    return replace(settings, tasks=_SINE_TASKS).build((0,))


def _images(name: str, spec: Spec) -> Stream:
    """Return random images with the shape of a set's images."""
    settings: Any = spec.stream
    shape = (3, settings.size, settings.size) if name == "cifar10" else (1, 28, 28)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (_ROWS, *shape), generator=generator, dtype=torch.uint8)
    classes = settings.tasks * settings.classes_per_task
    return Stream.from_arrays(x, torch.arange(_ROWS) % classes, name=name)
