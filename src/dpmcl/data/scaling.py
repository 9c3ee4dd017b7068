"""Scaling of a table's inputs and targets, fitted on the first task's training rows."""

import logging
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dpmcl.data.labelled import Labelled
from dpmcl.data.pools import pieces
from dpmcl.data.splits import Splits
from dpmcl.data.stream import LIMIT, Scale, Stream
from dpmcl.exceptions import DataError, printable

_LOG = logging.getLogger("dpmcl")
_EPSILON = torch.finfo(torch.float64).eps
_SHARE_OF_THE_RANGE = 1e-3
_SAMPLED = 1_000  # rows, evenly spaced, in which the middle half is looked for
_CLIPPED = 0.01  # largest share of clipped rows without a warning


def fit_scale(stream: Stream, splits: Splits) -> Stream:
    """Return the stream with the scale fitted on each replica's training rows of the first task.

    Columns that are constant in these rows are only shifted.

    Args:
        stream: Tasks over a pool of rows. Returned unchanged if `scaled` is None.
        splits: Rows of each replica.
    """
    if stream.scaled is None:
        return stream
    ends = splits.train.offset[:, 1].tolist()
    rows = [row[:end] for row, end in zip(splits.train.row, ends, strict=True)]
    unit = 255 if stream.x.dtype == torch.uint8 else 1  # as in `Stream.batch`
    x_mean, x_deviation = _moments([stream.x[row].to(torch.float64) / unit for row in rows])
    y_mean = torch.zeros(len(rows), 1, device=x_mean.device)
    y_deviation = torch.ones_like(y_mean)
    if stream.kind == "regression":
        y_mean, y_deviation = _moments([stream.y[row] for row in rows])
    return replace(stream, scale=Scale(x_mean, x_deviation, y_mean, y_deviation))


def clipped_shares(stream: Stream) -> dict[str, float]:
    """Return the share of rows that are clipped in each column or input; none if it is 0.

    Args:
        stream: The stream, of which the first replica's scale is used.
    """
    if stream.scale is None or stream.scaled is None:
        return {}
    unseen, counts = replace(stream, view=None), list[Tensor]()
    number = torch.arange(len(stream.x), device=stream.x.device)
    for row in number.split(len(pieces(stream.x)[0])):
        batch = unseen.batch(row, row >= 0, row * 0, torch.float64, replica=0)
        counts.append(((batch.x.abs() >= LIMIT) & stream.scaled).double().sum(0))
    shares = torch.stack(counts).sum(0) / len(stream.x)
    clipped = shares.nonzero().tolist()
    return {_column(stream, at): shares[tuple(at)].item() for at in clipped}


def clipping_note(shares: Mapping[str, float]) -> str:
    """Return a line on columns that are clipped, being far from those of the first task.

    Args:
        shares: Share of clipped rows in each column.
    """
    names = ", ".join(f"{name} ({share:.2g})" for name, share in [*shares.items()][:30])
    names += f" and {len(shares) - 30} more" * (len(shares) > 30)
    return printable(
        f"share of rows beyond {LIMIT:g} deviations of the first task, cut off there: {names}"
    )


def warn_if_clipped(stream: Stream, *, warned: Container[str] = ()) -> frozenset[str]:
    """Log a warning of columns of which more than a hundredth of the rows are clipped.

    Args:
        stream: The stream.
        warned: Columns that are left out.

    Returns:
        Names of the columns of the warning.
    """
    shares = {
        name: share
        for name, share in clipped_shares(stream).items()
        if share > _CLIPPED and name not in warned
    }
    if shares:
        note = clipping_note(shares)
        _LOG.warning(
            "%s; the network cannot tell these values apart. If they matter, scale the rows "
            "yourself and set scale = false.",
            note[0].upper() + note[1:],
            extra={"once": note},
        )
    return frozenset(shares)


def _moments(values: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the mean and standard deviation of each replica's rows; 1 for that of constants."""
    wide = [v.to(torch.float64) for v in values]
    mean = torch.stack([v.mean(0) for v in wide])
    deviation = torch.stack([v.std(0, correction=0) for v in wide])
    # The mean of equal values may differ from them by rounding, so their deviation may exceed 0.
    constant = torch.stack([(v == v[0]).all(0) for v in wide])
    constant |= deviation <= 4 * _EPSILON * mean.abs()
    return mean, torch.where(constant, torch.ones_like(deviation), deviation)


def check_digits(stream: Stream | Labelled, dtype: torch.dtype) -> None:
    """Check that the network's float type can hold inputs and targets that are not scaled.

    Logs a warning if it cannot tell apart the middle half of the values of an input. A few other
    values, such as those that fill gaps, can hide this from the check of all rows.

    Args:
        stream: Stream or labelled data to check.
        dtype: Float type of the network.

    Raises:
        DataError: Rounding makes an input or target infinite, or moves it by more than a thousandth
            of its range.
    """
    parts = [("Input", stream.x)]
    if stream.scaled is None:
        parts.append(("Target", stream.y))
    for what, values in parts:
        if values.dtype != torch.float64 or dtype == torch.float64:
            continue
        low, high = values.aminmax(dim=0)
        error = torch.stack([_rounding(rows, dtype) for rows in pieces(values)]).amax(0)
        lost = _is_lost(stream, error, low, high)
        if lost.any():
            at = tuple(lost.nonzero()[0].tolist())
            moved = error[at].item()
            cannot = f"tell apart (it moves them by up to {moved:.2g}); subtract an offset"
            if moved == math.inf:
                cannot = "hold; give them in a larger unit"
            raise DataError(
                f"{_name(stream, what, at)} goes from {low[at].item()!r} to {high[at].item()!r}, "
                f"which {str(dtype).removeprefix('torch.')} cannot {cannot}, set dtype = "
                "'float64', or have a table's columns scaled."
            )
        sample = values[:: -(-len(values) // _SAMPLED)].sort(dim=0).values
        half = sample[len(sample) // 4 : -(-3 * len(sample) // 4)]
        lost = _is_lost(stream, _rounding(half, dtype), half[0], half[-1])
        if lost.any():
            at = tuple(lost.nonzero()[0].tolist())
            line = (
                f"{_name(stream, what, at)} goes from {half[0][at].item()!r} to "
                f"{half[-1][at].item()!r} in half of the rows, which "
                f"{str(dtype).removeprefix('torch.')} cannot tell apart; if that matters, "
                "subtract an offset, or set dtype = 'float64'."
            )
            _LOG.warning(line, extra={"once": line})


def _rounding(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return by how much rounding to a type moves values (rows, ...) at most, (...)."""
    return (values - values.to(dtype).to(values.dtype)).abs().amax(0)


def _is_lost(stream: Stream | Labelled, error: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return the mask of values that are not scaled and are moved by too much for their range."""
    constant = high - low <= 50 * _EPSILON * torch.maximum(low.abs(), high.abs())  # to rounding
    lost = error.isinf() | ~constant & (error > _SHARE_OF_THE_RANGE * (high - low))
    return lost if stream.scaled is None else lost & ~stream.scaled


def _name(stream: Stream | Labelled, what: str, at: tuple[int, ...]) -> str:
    """Return the name of an input or target in messages, as in "Input 2 of 'arrays'"."""
    name = ", ".join(map(str, at))
    if what == "Input" and stream.columns:
        name = repr(stream.columns[at[0]])
    return f"{what} {name} of '{stream.name}'"


def _column(stream: Stream, at: Sequence[int]) -> str:
    """Return the name of a column of a table, or the number of an input, as in "input 0, 3"."""
    return stream.columns[at[0]] if stream.columns else f"input {', '.join(map(str, at))}"
