"""Export of a learner as a program of torch.export or ONNX, from rows to probabilities."""

import copy
import importlib.util
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, replace
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpmcl.core.atomic import write_bytes
from dpmcl.core.model import Model
from dpmcl.core.network_check import made_up_inputs
from dpmcl.core.part import Part
from dpmcl.core.tree import at
from dpmcl.data.stream import LIMIT
from dpmcl.exceptions import ModelError, SpecError, reason, shown
from dpmcl.learner.answers import answers
from dpmcl.learner.knowledge import Knowledge, stored_inputs
from dpmcl.methods._method import State

_ABOUT = "dpmcl.json"
_NEAR = 1e-5  # tolerance relative to the largest answer
_ROW_COUNTS = (1, 2, 7)
"""Numbers of rows for which a program is compared with the learner. It is traced with 3 rows."""

Exported = tuple[Callable[[Tensor], Tensor], bytes]
"""A program as a function of rows, and the content of its file."""


def export(known: Knowledge, path: Path) -> None:
    """Write a program that makes the learner's predictions, for any number of rows.

    Args:
        known: Knowledge of the learner.
        path: The file, .pt2 or .onnx.

    Raises:
        SpecError: The path has another suffix, or a package for it is missing.
        ModelError: The network cannot be exported.
        FolderError: The file cannot be written.
    """
    if path.suffix not in _EXPORTERS:
        raise SpecError(f"An exported program is a .pt2 or .onnx file, got {shown(str(path))}.")
    if path.suffix == ".onnx":
        _check_packages()
    try:
        with _quiet(), torch.no_grad(), torch.autocast("cpu", enabled=False):
            run, content = _EXPORTERS[path.suffix](_program(known), json.dumps(description(known)))
            for rows in _ROW_COUNTS:
                _check_program(known, run, _example(known, rows))
    except Exception as error:  # the exporters raise errors of many types
        raise ModelError(
            f"This network{_recurrent_layers(known)} cannot be exported for any number of rows: "
            f"{reason(_root_cause(error))}; use learner.save, or, in a module of your own, take "
            "the number of rows from x.shape[0] (len(x) fixes it)."
        ) from error
    write_bytes(path, content)


def description(known: Knowledge) -> dict[str, Any]:
    """Return a description of a program's inputs and outputs: types, columns and labels.

    Args:
        known: Knowledge of the learner.
    """
    form = known.form
    return {
        "kind": form.kind,
        "input": str(_example(known, 1).dtype).removeprefix("torch."),
        "shape": list(form.inputs.shape),
        "columns": list(form.inputs.columns),
        "fields": [asdict(field) for field in form.inputs.fields],
        "labels": form.labels.originals().tolist() if form.labels.names else [],
    }


def _program(known: Knowledge) -> torch.export.ExportedProgram:
    """Return the learner as a program, without the file paths of this machine."""
    rows = torch.export.Dim("rows")
    program = torch.export.export(
        _Ensemble(known).eval(), (_example(known, 3),), dynamic_shapes=({0: rows},)
    )
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)
    return program


def _pt2(program: torch.export.ExportedProgram, description: str) -> Exported:
    """Return a program of torch.export as a function, and the content of its file."""
    content = BytesIO()
    torch.export.save(program, content, extra_files={_ABOUT: description})
    return program.module(), content.getvalue()


def _onnx(program: torch.export.ExportedProgram, description: str) -> Exported:
    """Return a program of ONNX as a function, run by ONNX Runtime, and the content of its file."""
    import onnxruntime

    exported = torch.onnx.export(
        program, (), dynamo=True, verbose=False, input_names=["rows"], output_names=["answers"]
    )
    assert exported is not None
    exported.model.metadata_props[_ABOUT] = description
    content = exported.model_proto.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(x: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"rows": x.numpy()})[0])

    return run, content


_EXPORTERS = {".pt2": _pt2, ".onnx": _onnx}


def _check_packages() -> None:
    """Raise SpecError if a package that ONNX needs is missing."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(name) is None:
            raise SpecError(f"Exporting to ONNX needs {name}: pip install 'dpmcl[onnx]'.")


def _check_program(known: Knowledge, run: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """Raise AssertionError if the outputs of a program differ from the learner's."""
    expected, actual = answers(known, stored_inputs(known.form, x)).mean(0), run(x).double()
    largest = float(expected.abs().max())
    tolerance = min(_NEAR * max(1.0, largest), 1e-3 * largest)  # answers may have a small unit
    torch.testing.assert_close(actual, expected, rtol=_NEAR, atol=tolerance)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the output, warnings and log lines of the exporters."""
    loggers = [logging.getLogger(name) for name in ("torch", "onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _root_cause(error: BaseException) -> BaseException:
    """Return the first error in the chain of causes of an error."""
    return error if error.__cause__ is None else _root_cause(error.__cause__)


def _recurrent_layers(known: Knowledge) -> str:
    """Return the names of recurrent layers for an error message; empty if there are none."""
    names = {
        f"{type(layer).__name__} {part}.{name}"
        for part, module in known.setup.model.parts.items()
        for name, layer in module.evaluation.named_modules()
        if isinstance(layer, nn.RNNBase | nn.RNNCellBase)
    }
    return f" ({', '.join(sorted(names))})" if names else ""


def _example(known: Knowledge, rows: int) -> Tensor:
    """Return inputs of a program, uint8 or float64: rows of the memory, or random ones."""
    inputs, scale = known.form.inputs, known.setup.stream.scale
    held, kind = known.held.x.cpu(), torch.uint8 if inputs.images else torch.float64
    if known.form.body is None and len(held):
        return held[torch.arange(rows) * len(held) // rows].to(kind)
    x = made_up_inputs(rows, inputs.shape).to(torch.float64)
    if inputs.images:
        return (x * 128).to(kind)
    return x if scale is None else x * scale.x_deviation[0].cpu() + scale.x_mean[0].cpu()


class _Ensemble(nn.Module):
    """All replicas of a learner: from unscaled inputs to their mean prediction."""

    def __init__(self, known: Knowledge) -> None:
        super().__init__()
        stream, model = known.setup.stream, known.setup.model
        self.classes = len(known.form.labels.names)
        self.dtype, self.images = model.dtype, known.form.inputs.images
        body = known.form.body
        self.body = None if body is None else _module(body, "representation", State({}, {}, {}))
        states = [at(known.evaluated, replica) for replica in range(len(known.setup.seeds))]
        self.replicas = nn.ModuleList(_Replica(model, state) for state in states)
        scaled = stream.scaled if stream.scale is not None else None
        self.scaled = scaled is not None
        if scaled is not None and stream.scale is not None:
            self.register_buffer("numbers", scaled.cpu())
            for name, leaf in stream.scale._asdict().items():  # equal for all replicas
                self.register_buffer(
                    name, leaf[0].cpu().clone()
                )  # torch saves no view without a warning

    def forward(self, x: Tensor) -> Tensor:
        """Return probabilities (rows, classes), or values (rows, outputs).

        Args:
            x: Inputs (rows, ...).
        """
        buffers: Any = self
        if self.images:
            x = x.to(torch.float64) / 255
        if self.scaled:
            scaled = ((x - buffers.x_mean) / buffers.x_deviation).clamp(-LIMIT, LIMIT)
            x = torch.where(buffers.numbers, scaled, x)
        x = x.to(self.dtype)
        if self.body is not None:
            x = self.body(x)
        outputs = [replica(x).double() for replica in self.replicas]
        if self.classes:
            return torch.stack([o[:, : self.classes].softmax(-1) for o in outputs]).mean(0)
        mean = torch.stack(outputs).mean(0)
        return mean * buffers.y_deviation + buffers.y_mean if self.scaled else mean


class _Replica(nn.Module):
    """Network of one replica, for prediction only."""

    def __init__(self, model: Model, state: State) -> None:
        super().__init__()
        parts = {name: _module(model, name, state) for name in model.parts}
        self.parts = nn.ModuleDict(parts)  # the program holds the values of registered modules
        self.model = replace(
            model,
            parts={
                name: replace(model.parts[name], evaluation=module, statistics={}, tied={})
                for name, module in parts.items()
            },
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits or values (rows, outputs).

        Args:
            x: Inputs (rows, ...).
        """
        return self.model.predict({name: {} for name in self.model.parts}, x)


def _module(model: Model, name: str, state: State) -> nn.Module:
    """Return a part of the model as a module with the parameters and buffers of a state."""
    part: Part = model.parts[name]
    module = copy.deepcopy(part.evaluation).cpu()
    values = {**state.theta.get(name, {}), **state.buffers.get(name, {})}
    with torch.no_grad():
        for key, value in values.items():
            targets = dict(module.named_parameters()) | dict(module.named_buffers())
            targets[key].copy_(value)
    return module
