"""Summaries of records: a row for each method, with means and standard errors over seeds."""

import inspect
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any

import numpy as np

from dpmcl import plugins
from dpmcl.core.gradients import Work
from dpmcl.exceptions import SpecError, reason
from dpmcl.metrics.accuracy import accuracy
from dpmcl.metrics.cme import cme
from dpmcl.metrics.cme_micro import cme_micro
from dpmcl.metrics.forgetting import forgetting
from dpmcl.metrics.nte import nte
from dpmcl.metrics.nte_path import nte_path
from dpmcl.results import statistics
from dpmcl.results.record import Record
from dpmcl.results.store import StreamInfo

Row = dict[str, Any]
"""A row of a table: numbers and text by name."""

_OF_CLASSES = {"accuracy", "accuracy_micro", "anytime_accuracy"}
"""Metrics that have no value for a regression."""


def mean(values: np.ndarray) -> float | None:
    """Return the mean over the replicas that have a value; None if none has.

    Args:
        values: Value of each replica, (replicas,); NaN for a replica that diverged.
    """
    known = values[~np.isnan(values)]
    with np.errstate(invalid="ignore"):  # infinite values of both signs have no mean
        value = float(known.mean()) if len(known) else math.nan
    return None if math.isnan(value) else value


def standard_error(values: np.ndarray) -> float | None:
    """Return the standard error of the mean; None for fewer than two values, or if one is infinite.

    Args:
        values: Value of each replica, (replicas,); NaN for a replica that diverged.
    """
    known = values[~np.isnan(values)]
    if len(known) < 2 or np.isinf(known).any():
        return None
    return statistics.standard_error(known)


@np.errstate(invalid="ignore")  # infinite errors of replicas that diverged
def rows(
    records: Mapping[str, Record], stream: StreamInfo, metrics: Sequence[str] = ()
) -> list[Row]:
    """Return a row of results for each method.

    Means and standard errors are over the replicas that did not diverge. Errors are 1 - accuracy
    for classification and mean squared errors for regression, whose accuracy is None. They are
    means over tasks, except cme_micro, which is the mean over test rows and so gives large tasks
    more weight. Work is that of one replica, averaged if replicas differ.

    Args:
        records: Results by method.
        stream: Description of the stream.
        metrics: Names of further metrics, each added as NAME_mean and NAME_se.

    Raises:
        SpecError: A metric does not exist, or does not return one number for each replica.
    """
    out = []
    for name, record in records.items():
        errors = record.test
        work = _mean_work(record)
        row: Row = {
            "stream": stream.name,
            "method": name,
            "replicas": len(errors.seeds),
            **_summary("cme", cme(errors)),
            **_summary("cme_micro", cme_micro(errors)),
            **_summary("nte", nte(errors)),
            "nte_path_mean": mean(nte_path(errors)),
            "accuracy_mean": mean(accuracy(errors)) if stream.kind == "classification" else None,
            "forgetting_mean": mean(forgetting(errors)),
            "gradient_evaluations": work["gradient_evaluations"],
            "rows_backpropagated": work["rows_backpropagated"],
            "diverged": len(record.diverged),
            "diverged_seeds": " ".join(map(str, sorted(record.diverged))),
        }
        survived = [seed not in record.diverged for seed in errors.seeds]
        lacking = {}
        for metric in metrics:
            values = np.where(survived, _metric_values(metric, record), np.nan)
            if stream.kind == "regression" and metric in _OF_CLASSES:
                values[:] = np.nan
            row |= _summary(metric, values)
            lacking[metric] = int(np.isnan(values[survived]).sum())
        out.append(row | {"lacking": lacking} if metrics else row)
    return out


def _summary(name: str, values: np.ndarray) -> Row:
    """Return the mean and the standard error of a metric, by name."""
    return {f"{name}_mean": mean(values), f"{name}_se": standard_error(values)}


def _metric_values(metric: str, record: Record) -> np.ndarray:
    """Return the value of a metric for each replica."""
    measure = plugins.find("metric", metric)
    options = {}
    with suppress(ValueError):  # some built-in functions have no signature
        if "predictions" in inspect.signature(measure).parameters:
            options["predictions"] = record.predictions
    if options == {"predictions": None}:
        raise SpecError(
            f"metric '{metric}' reads predictions, and this run has kept none; leave it out, or "
            "run into a new folder with --set evaluation.predictions=true."
        )
    try:
        values = np.asarray(measure(record.test, **options), dtype=np.float64)
        if values.shape != (len(record.test.seeds),):
            raise ValueError(f"it has the shape {values.shape}")
    except Exception as error:
        raise SpecError(
            f"metric '{metric}' must return a number for each replica, and fails: {reason(error)}; "
            "correct it, or leave it out."
        ) from None
    return values


def rows_by_task(records: Mapping[str, Record], stream: StreamInfo) -> list[Row]:
    """Return a row for each method and task: the error after that task and after the last one.

    Args:
        records: Results by method.
        stream: Description of the stream.
    """
    out = []
    for name, record in records.items():
        errors = record.test
        for task, title in enumerate(stream.tasks):
            row = {
                "stream": stream.name,
                "method": name,
                "task": task,
                "name": title,
                "replicas": len(errors.seeds),
                "diverged": len(record.diverged),
                **_summary("new", errors.after[:, task, task]),
                **_summary("last", errors.after[:, -1, task]),
            }
            out.append(row)
    return out


def cost_rows(records: Mapping[str, Record], stream: StreamInfo) -> list[Row]:
    """Return a row for each method: cost of a replica's updates and its memory, mean over seeds.

    Args:
        records: Results by method.
        stream: Description of the stream.
    """
    return [
        {
            "stream": stream.name,
            "method": name,
            "replicas": len(record.test.seeds),
            "diverged": len(record.diverged),
            **_mean_work(record),
        }
        for name, record in records.items()
    ]


def _mean_work(record: Record) -> dict[str, int | None]:
    """Return the mean cost of a seed's updates by kind; None for a kind that was not counted.

    Earlier versions counted fewer kinds, so their folders have 0 for the others, and version 0.1
    counted rows differently. If seeds were added to such a folder, the means are over those seeds.
    """
    spent = [record.work[seed] for seed in record.test.seeds if seed in record.work]
    later = [work for work in spent if work.flops] or spent
    kinds = [field.name for field in fields(Work)]
    means: dict[str, int | None] = dict.fromkeys(kinds)
    for kind in kinds if spent else ():
        values = [getattr(work, kind) for work in later]
        counted = [value for value in values if value] or values
        if any(counted) or later[0].flops or kind in kinds[:2]:
            means[kind] = round(sum(counted) / len(counted))
    return means
