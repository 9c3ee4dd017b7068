"""A learner as a program of torch.export: scaling, network and probabilities in one graph."""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpmcl.core.atomic import atomic
from dpmcl.core.model import Model
from dpmcl.core.part import Part
from dpmcl.core.tree import at
from dpmcl.data.stream import LIMIT
from dpmcl.exceptions import ModelError, reason
from dpmcl.learner.answers import answers
from dpmcl.learner.knowledge import Knowledge, kept
from dpmcl.methods._method import State

_NEAR = 1e-5


def export(known: Knowledge, path: Path) -> None:
    """Write a program that predicts as a learner does, for any number of rows.

    Args:
        known: What the learner knows.
        path: The file, .pt2.

    Raises:
        ModelError: The network cannot be exported.
        FolderError: The file cannot be written.
    """
    form = known.form
    example = _example(known, 3)
    module = _Whole(known).eval()
    rows = torch.export.Dim("rows")
    try:
        with torch.no_grad():
            program = torch.export.export(module, (example,), dynamic_shapes=({0: rows},))
            for n in (1, 5):
                x = _example(known, n)
                expected = answers(known, kept(form, x)).mean(0)
                torch.testing.assert_close(
                    program.module()(x).double(), expected, rtol=_NEAR, atol=_NEAR
                )
    except Exception as error:  # each layer has its own way to say no
        raise ModelError(
            f"This network cannot be exported for any number of rows: {reason(error)}; use "
            "learner.save."
        ) from error
    with atomic(path) as temporary:
        torch.export.save(program, temporary, extra_files={"dpmcl.json": json.dumps(about(known))})


def about(known: Knowledge) -> dict[str, Any]:
    """Return what a program takes and gives: types, columns, categories and labels.

    Args:
        known: What the learner knows.
    """
    form = known.form
    return {
        "kind": form.kind,
        "input": str(_example(known, 1).dtype).removeprefix("torch."),
        "shape": list(form.inputs.shape),
        "columns": list(form.inputs.columns),
        "labels": form.labels.originals().tolist() if form.labels.names else [],
    }


def _example(known: Knowledge, rows: int) -> Tensor:
    """Return made-up inputs as a program takes them: uint8 for images, else float64."""
    inputs = known.form.inputs
    generator = torch.Generator().manual_seed(rows)
    if inputs.images:
        return torch.randint(0, 256, (rows, *inputs.shape), generator=generator, dtype=torch.uint8)
    return torch.rand(rows, *inputs.shape, generator=generator, dtype=torch.float64)


class _Whole(nn.Module):
    """All replicas of a learner, from rows as they come to their mean answer."""

    def __init__(self, known: Knowledge) -> None:
        super().__init__()
        stream, model = known.setup.stream, known.setup.model
        self.classes = len(known.form.labels.names)
        self.dtype, self.images = model.dtype, known.form.inputs.images
        body = known.form.body
        self.body = None if body is None else _module(body, "representation", State({}, {}, {}))
        states = [at(known.shown, replica) for replica in range(len(known.setup.seeds))]
        self.replicas = nn.ModuleList(_Replica(model, state) for state in states)
        scaled = stream.scaled if stream.scale is not None else None
        self.scaled = scaled is not None
        if scaled is not None and stream.scale is not None:
            self.register_buffer("numbers", scaled.cpu())
            for name, leaf in stream.scale._asdict().items():  # the same for all replicas
                self.register_buffer(name, leaf[0].cpu())

    def forward(self, x: Tensor) -> Tensor:
        """Return probabilities (rows, classes), or values (rows, outputs).

        Args:
            x: Inputs (rows, ...).
        """
        held: Any = self
        if self.images:
            x = x.to(torch.float64) / 255
        if self.scaled:
            near = ((x - held.x_mean) / held.x_deviation).clamp(-LIMIT, LIMIT)
            x = torch.where(held.numbers, near, x)
        x = x.to(self.dtype)
        if self.body is not None:
            x = self.body(x)
        outputs = [replica(x).double() for replica in self.replicas]
        if self.classes:
            return torch.stack([o[:, : self.classes].softmax(-1) for o in outputs]).mean(0)
        mean = torch.stack(outputs).mean(0)
        return mean * held.y_deviation + held.y_mean if self.scaled else mean


class _Replica(nn.Module):
    """One replica's network, without what training alone needs."""

    def __init__(self, model: Model, state: State) -> None:
        super().__init__()
        self.h = _module(model, "representation", state)
        self.g = _module(model, "prediction", state)
        self.gate = _module(model, "gate", state) if model.gate else None
        self.on = model.gate

    def forward(self, x: Tensor) -> Tensor:
        """Return logits or values.

        Args:
            x: Inputs (rows, ...).
        """
        features = self.h(x)
        if self.gate is not None and self.on == "features":
            features = features * torch.sigmoid(self.gate(x))
        out: Tensor = self.g(features)
        return out * self.gate(x) if self.gate is not None and self.on == "outputs" else out


def _module(model: Model, name: str, state: State) -> nn.Module:
    """Return a part as a module that holds its values."""
    part: Part = model.parts[name]
    module = copy.deepcopy(part.evaluation).cpu()
    values = {**state.theta.get(name, {}), **state.buffers.get(name, {})}
    with torch.no_grad():
        for key, value in values.items():
            held = dict(module.named_parameters()) | dict(module.named_buffers())
            held[key].copy_(value)
    return module
