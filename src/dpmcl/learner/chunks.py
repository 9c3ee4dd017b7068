"""Reading a chunk from a user's data, and splitting its rows."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dpmcl.core import keys
from dpmcl.core.model import Kind
from dpmcl.data.labelled import (
    Labelled,
    kind_of,
    targets_of,
    warn_if_classes,
    warn_if_reordered,
)
from dpmcl.data.readers.datasets import (
    DatasetSettings,
    inputs_of_dataset,
    is_hugging_face,
    read_dataset,
)
from dpmcl.data.readers.table_fields import CATEGORIES
from dpmcl.data.scaling import check_digits
from dpmcl.engine import device_of
from dpmcl.exceptions import DataError, SpecError, listed, shown
from dpmcl.learner.answers import computing
from dpmcl.learner.config import Config
from dpmcl.learner.inputs import Inputs, as_table, split_target
from dpmcl.learner.knowledge import Form, Knowledge, stored_inputs, with_body
from dpmcl.learner.labels import LabelMap, labels_of_names
from dpmcl.learner.pool import Examples


def read_chunk(config: Config, form: Form | None, x: Any, y: Any) -> tuple[Form, Examples]:
    """Read the rows of a chunk as tensors.

    Args:
        config: Arguments of the learner.
        form: Form of the chunks before; None for the first chunk.
        x, y: As for `Learner.learn`.

    Returns:
        The form of the rows, with the labels of this chunk, and the rows.

    Raises:
        DataError: The rows cannot be used, or differ in form from those before.
        ModelError: The network cannot be used.
        SpecError: Classes were declared, but the targets are those of a regression.
    """
    first, (x, y, target) = form is None, _inputs_and_targets(config, form, x, y)
    form = form or _first_form(config, x, y, target)
    device, labels = device_of(config.device), form.labels
    values = form.inputs.read(x).to(device)
    if form.kind == "classification":
        labels, targets = labels.numbered(y, "Labels")
    else:
        targets = targets_of(y, "Targets")
    data = _checked(form, values, targets)
    if first and target and config.kind is None:
        _check_amounts(target, labels)
    if form.kind == "regression" and data.y.shape[1] != form.width:
        raise DataError(
            f"Targets must have {form.width} values a row, as those learned first, got "
            f"{data.y.shape[1]}."
        )
    with computing():
        if first:
            form = with_body(config, form, values)
        if form.body is not None:
            check_digits(data, config.floats)
        examples = Examples(stored_inputs(form, values), data.y.to(device))
    return replace(form, labels=labels, target=target or form.target), examples


def check_validation(config: Config, rows: Any) -> None:
    """Check that validation rows come from one source, or from none if not needed, as a pair.

    Args:
        config: Arguments of the learner.
        rows: Validation rows passed with a chunk, or None.

    Raises:
        SpecError: A method that trains on validation rows has no source of them, or two; or rows
            were passed to another method, or without targets.
    """
    trains = config.method.trains_on_validation
    if trains and (config.validation is None) == (rows is None):
        raise SpecError(
            "This method trains on validation rows; give a share of each chunk's, as in "
            "validation=0.2 for the learner, or rows, as in learn(x, y, validation=(u, v)), got "
            f"{'neither' if rows is None else 'both'}."
        )
    if not trains and rows is not None:
        raise SpecError("validation is for methods that train on validation rows; leave it out.")
    if rows is not None and not (isinstance(rows, tuple | list) and len(rows) == 2):
        raise SpecError(
            f"validation must be inputs and their targets, got {shown(rows)}; give both, as in "
            "learn(x, y, validation=(u, v))."
        )


def read_inputs(form: Form, x: Any) -> Tensor:
    """Return inputs without targets, in the form that is stored (`stored_inputs`).

    Args:
        form: Form of the rows.
        x: Inputs, as for `Learner.learn`, or a data set of inputs alone. The target column of a
            table, and the targets of a data set, are ignored.

    Raises:
        DataError: The rows differ in form from those learned.
    """
    x = as_table(x)
    if is_hugging_face(x) or isinstance(x, Dataset | DataLoader):
        x = inputs_of_dataset(x, "the rows")
    if form.target and isinstance(x, pa.Table) and form.target in x.column_names:
        x = x.drop_columns([form.target])
    values = form.inputs.read(x)
    with computing():
        return stored_inputs(form, _checked(form, values, torch.zeros(len(values), 1)).x)


def split_rows(
    config: Config, known: Knowledge | None, examples: Examples
) -> tuple[Examples, Examples, Examples]:
    """Split a chunk at random into rows for training, for validation, and held out.

    Args:
        config: Arguments of the learner.
        known: Knowledge before the chunk; None for the first chunk.
        examples: Rows of the chunk.

    Returns:
        The rows for training, those for validation, and those held out.

    Raises:
        DataError: No row is left for training.
    """
    chunks, rows_before, held_before = (0, 0, 0) if known is None else (
        known.chunks, known.rows + known.held_out, known.held_out
    )  # fmt: skip
    rows, share = len(examples.x), config.validation or 0.0
    rows_before = round(rows_before / (1 - share))  # with those for validation, never counted
    validation = max(round(share * rows), 1) if share else 0
    holdout = math.floor((rows_before + rows) * config.holdout) - held_before
    most = min(math.ceil(rows * config.holdout), rows - 1 - validation)
    holdout = max(min(holdout, most), 0)
    if rows <= holdout + validation:
        raise DataError(f"A chunk needs a row to learn beside those held out, got {rows}.")
    key = keys.derive(config.seed, keys.Purpose.SPLIT, chunks)
    order = keys.permutation(key, rows).to(examples.x.device)
    chosen = (
        index.sort().values
        for index in order.split([holdout, validation, rows - holdout - validation])
    )
    held_out, validating, train = (
        Examples(examples.x[index], examples.y[index]) for index in chosen
    )
    return train, validating, held_out


def _checked(form: Form, x: Tensor, y: Tensor) -> Labelled:
    """Return inputs and targets after a check that there are rows and that all are finite."""
    return Labelled("the rows", "regression", x, y, fields=form.inputs.fields)


def _first_form(config: Config, x: Any, y: Any, target: str) -> Form:
    """Return the form of the rows of all chunks, given the first chunk."""
    inputs, kind = Inputs.of(x), config.kind or kind_of(y)
    if kind == "regression" and config.labels.names:
        raise SpecError("classes= is for classification, and the targets are numbers.")
    targets = targets_of(y, "Targets") if kind == "regression" else None
    if targets is not None and config.kind is None:
        warn_if_classes(targets)
    return Form(
        inputs=inputs,
        kind=kind,
        labels=config.labels,
        flat=np.ndim(y) == 1,
        width=1 if targets is None else targets.shape[1],
        scale=bool(inputs.fields) if config.scale is None else config.scale,
        target=target,
    )


def _inputs_and_targets(config: Config, form: Form | None, x: Any, y: Any) -> tuple[Any, Any, str]:
    """Return inputs, targets, and the name of their column if they are a column of a table."""
    warn_if_reordered(x, y)
    labels, kind = (config.labels, config.kind) if form is None else (form.labels, form.kind)
    # "7" in a column remains text if earlier labels are text. In the first chunk it remains text if
    # the table is in memory; in a file it is a number.
    text = kind != "regression" and not isinstance(x, str | Path)
    text = labels.family == "strings" if labels.family else text
    target = (form.target if form is not None else "") or "label" * is_hugging_face(x)
    x = as_table(x)
    has_images = is_hugging_face(x)
    if y is None and isinstance(x, pa.Table):
        y = target or None
    if isinstance(y, str) and not has_images:
        if not isinstance(x, pa.Table):
            raise DataError(f"y may name a column of a table, and x is a {type(x).__name__}.")
        return *split_target(x, y, text=text), y
    columns = x.column_names if isinstance(x, pa.Table) else []
    if isinstance(y, list) and y and all(isinstance(name, str) and name in columns for name in y):
        raise DataError(
            f"y names one column of a table, got {listed(y)}; give several targets as numbers, "
            "(rows, targets), and leave their columns out of x."
        )
    if y is not None and not isinstance(y, str):
        name = getattr(y, "name", None)  # of a column of pandas or polars
        if name in columns and x.column(name).to_pylist() == list(y):
            raise DataError(
                f"Targets must not be among the inputs, and y is column {name!r:.60} of x; name "
                f"it, as in learn(x, {name!r:.60}), or leave it out of x."
            )
        y = pa.chunked_array([y]) if isinstance(y, pa.Array) else y  # to_numpy would refuse to copy
        x = inputs_of_dataset(x, "the rows") if has_images else x
        return x, y.to_numpy() if hasattr(y, "to_numpy") else y, ""
    if isinstance(x, Tensor | np.ndarray | pa.Table):
        raise DataError(
            "A chunk needs targets; give them as y, or, of a table, the name of their column."
        )
    data = _read_pairs(x, kind, y or (target if has_images else None))
    if data.kind == "regression":
        return data.x, data.y.squeeze(1), y or ""
    names = np.array(data.classes) if data.text else labels_of_names(data.classes).originals()
    return data.x, names[data.y.numpy()], y or ""


def _read_pairs(dataset: Any, kind: Kind | None, column: str | None = None) -> Labelled:
    """Return a data set as inputs and targets; raise DataError if its items have a third part."""
    # Float labels keep their type if they are read as numbers, also where they are classes.
    settings = DatasetSettings(kind="regression" if kind == "regression" else None, y=column)
    data = read_dataset(dataset, settings)
    if data.task is not None:
        raise DataError(
            "Items of a chunk must be pairs (x, y), since each chunk is one task, and those of "
            f"'{data.name}' have three parts; leave out what is no input and no target."
        )
    return data


def _check_amounts(target: str, labels: LabelMap) -> None:
    """Raise DataError for a column of many integers, which may be classes or amounts."""
    if labels.family == "whole numbers" and len(labels.names) > CATEGORIES and not labels.fixed:
        raise DataError(
            f"Column {target!r:.60} has {len(labels.names)} different whole numbers, which may be "
            "classes or amounts; set kind='classification' or kind='regression'."
        )
