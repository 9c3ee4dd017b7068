"""Predictions of a learner: probabilities, or values in the units of the targets."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from dpmcl.core.allocation import report_out_of_memory
from dpmcl.core.batch import Batch
from dpmcl.core.model import is_dense
from dpmcl.core.precision import arithmetic
from dpmcl.core.threads import threads
from dpmcl.exceptions import DataError, DpmclError, ModelError, reason
from dpmcl.learner.knowledge import Knowledge
from dpmcl.methods._method import State

_IMAGES_AT_ONCE = 1024  # largest block of images
_VECTORS_AT_ONCE = 256


@contextmanager
def computing() -> Iterator[None]:
    """Compute within the block with the threads, allocation and precision of a run.

    Raises:
        ModelError: The network fails in the block.
    """
    with threads(1), report_out_of_memory(), arithmetic(None):
        try:
            yield
        except DpmclError:
            raise
        except (IndexError, RuntimeError, ValueError) as error:  # a user's module
            raise ModelError(
                f"The network fails on these rows: {reason(error)}; correct them, or the network."
            ) from error


def answers(known: Knowledge, x: Tensor) -> Tensor:
    """Return each replica's probabilities or values, float64 (replicas, rows, outputs), on the CPU.

    Args:
        known: Knowledge of the learner.
        x: Inputs (rows, ...) in the form that is stored (`knowledge.stored_inputs`).

    Raises:
        DataError: An answer is not finite.
    """
    setup, classes = known.setup, known.form.kind == "classification"
    x = x.to(setup.model.device)
    rows = len(x)
    size = min(rows, _VECTORS_AT_ONCE if x.dim() == 2 else _IMAGES_AT_ONCE)
    if x.dim() == 2 and is_dense(setup.model):
        size = _VECTORS_AT_ONCE  # always, so that an answer does not depend on the other rows
    y = setup.stream.y.new_zeros(len(x), *setup.stream.y.shape[1:])
    stream = replace(setup.stream, x=x, y=y)

    def answer(state: State, batch: Batch) -> Tensor:
        model = setup.model.holding(state.buffers)
        outputs = model.among(model.predict(state.theta, batch.x)).double()
        return outputs.softmax(-1) if classes else outputs

    blocks = []
    with computing(), torch.no_grad():
        for first in range(0, rows, size):
            row = torch.arange(first, first + size, device=x.device).clamp(max=rows - 1)
            row = row.expand(len(setup.seeds), -1)
            batch = stream.batch(row, row >= 0, row * 0, setup.model.dtype)
            blocks.append(setup.engine.map(answer, known.evaluated, batch))
    out = torch.cat(blocks, dim=1)[:, :rows]
    invalid_rows = (~out.isfinite()).any(-1).any(0).nonzero()
    if len(invalid_rows):
        raise DataError(
            f"The network has no finite answer for row {int(invalid_rows[0])}, as for numbers too "
            "large for it; correct the row, or leave it out."
        )
    if classes:
        return out[..., : len(known.form.labels.names)].cpu()
    if stream.scale is not None:
        out = out * stream.scale.y_deviation[:, None] + stream.scale.y_mean[:, None]
    return out.cpu()


def error(known: Knowledge, x: Tensor, y: Tensor) -> float:
    """Return the error on rows: the share of wrong labels, or the mean squared error.

    Args:
        known: Knowledge of the learner.
        x, y: As for `row_errors`.
    """
    return float(row_errors(known, x, y).mean())


def row_errors(known: Knowledge, x: Tensor, y: Tensor) -> Tensor:
    """Return the error on each row, float64 (rows,): 0 or 1, or the squared error.

    Args:
        known: Knowledge of the learner.
        x: Inputs, as for `answers`.
        y: Class numbers (rows,), or values (rows, outputs).
    """
    predicted, y = answers(known, x).mean(0), y.cpu()
    if known.form.kind == "classification":
        return (predicted.argmax(-1) != y).double()
    return (predicted - y.double()).square().mean(-1)
