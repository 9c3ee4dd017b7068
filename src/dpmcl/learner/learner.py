"""A learner: rows come in chunks, each is learned as a task, and old ones are minded."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpmcl import plugins
from dpmcl.core import keys
from dpmcl.core.atomic import path_of
from dpmcl.core.choices import DeviceName, EngineName
from dpmcl.core.model import Kind
from dpmcl.core.threads import threads
from dpmcl.data.labelled import Labelled, check_kind, kind_of, targets_of
from dpmcl.data.readers.datasets import read_dataset
from dpmcl.data.readers.tables import CATEGORIES
from dpmcl.data.scaling import check_digits
from dpmcl.engine import device_of
from dpmcl.exceptions import DataError, SpecError, shown
from dpmcl.learner import artefact
from dpmcl.learner.answers import answers, computing, error
from dpmcl.learner.export import export
from dpmcl.learner.inputs import Inputs, is_table, opened, target_apart, without
from dpmcl.learner.knowledge import Config, Form, Knowledge, kept, learned, with_body
from dpmcl.learner.labels import LabelMap, declared, of_names
from dpmcl.learner.network import Network, network_of
from dpmcl.learner.pool import Part
from dpmcl.learner.report import Report, cost, report, with_chunk
from dpmcl.methods._method import Method

Array = NDArray[Any]

_LOG = logging.getLogger("dpmcl")
_NOTHING = "Nothing has been learned yet; call learn(x, y) first."


class Learner:
    """A network that learns chunk after chunk, and minds what it learned before.

    Each chunk is a task of the method, and a bounded memory keeps rows of the past. Labels come
    back as they were. A call that raises leaves the learner as it was.

    Args:
        model: A network's name ("mlp", "lenet"), a table of a name and settings, settings
            (`dpmcl.NetworkSettings`), a module of your own, two of them (representation and
            prediction), or a function of (shape, outputs) that returns either. A module keeps its
            weights; a last linear layer of another width than there are classes is made anew.
        method: A method's name, or a `dpmcl.Method` or a subclass of it. Methods that need all
            rows of the past ("joint") cannot be used.
        cost: The cost of a row, by its name ("huber", "label_smoothing") or a function of your own
            of (outputs, targets) that returns one number a row; None for cross entropy, or the
            squared error.
        memory: Rows of the past that are kept, for each replica.
        seed: Of the first replica.
        replicas: Networks that learn side by side, with seeds of their own; their mean predicts.
        classes: Labels of all classes, in the order of the outputs; None adds classes as they come.
        kind: "classification" or "regression"; None to tell by the first targets.
        scale: Whether numbers (and targets of a regression) are brought to mean 0 and deviation 1,
            by the first chunk; None for tables alone, as in a run.
        validation: Share of each chunk's rows for methods that train on validation rows.
        holdout: Share of each chunk's rows that are kept from training, for `report`: at most 50 of
            a chunk, and of 20 groups of chunks.
        forgetting_limit: A chunk is reported that costs more than so much on the rows held out of
            earlier ones; `undo` takes it back.
        monitor: "stability" to watch the conditions of Theorem 1 on each chunk, for `report`.
        before: Name of the layer before which one module is split into representation and
            prediction; None for its last linear layer.
        frozen: Names of layers of modules that stay as they are.
        dtype: "float32" or "float64".
        device: "auto", "cpu" or "cuda".
        engine: "auto", "batched" or "looped".
        **settings: Settings of the method, as in updates=100, lr=0.05 (`dpmcl.Method`).

    Raises:
        SpecError: An argument breaks a rule.

    >>> learner = Learner(updates=50, lr=0.1)
    >>> learner.learn([[0.0, 0.1], [1.0, 0.9]] * 10, ["no", "yes"] * 10)
    Learner(replay, mlp, 1 chunk, 20 rows, classes no, yes)
    >>> learner.learn([[3.0, 3.0]] * 10, ["maybe"] * 10).predict([[3.0, 3.0], [0.0, 0.0]])
    array(['maybe', 'no'], dtype='<U5')
    """

    def __init__(
        self,
        model: Any = None,
        *,
        method: str | type[Method] | Method = "replay",
        cost: str | Callable[..., Any] | None = None,
        memory: int = 1000,
        seed: int = 0,
        replicas: int = 1,
        classes: Any = None,
        kind: Kind | None = None,
        scale: bool | None = None,
        validation: float | None = None,
        holdout: float = 0.0,
        forgetting_limit: float | None = None,
        monitor: Literal["stability"] | None = None,
        before: str | None = None,
        frozen: Sequence[str] = (),
        dtype: Literal["float32", "float64"] = "float32",
        device: DeviceName = "auto",
        engine: EngineName = "auto",
        **settings: Any,
    ) -> None:
        check_kind(kind)
        if scale not in (None, True, False):
            raise SpecError(f"scale must be True, False or None, got {shown(scale)}.")
        _check_choices(dtype=dtype, device=device, engine=engine)
        for name, value, least in (
            ("memory", memory, 1),
            ("replicas", replicas, 1),
            ("seed", seed, 0),
        ):
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
                raise SpecError(f"{name} must be a whole number from {least}, got {shown(value)}.")
        if seed + replicas > 2**63:
            raise SpecError(f"Seeds must stay below 2^63, got {replicas} from {seed}.")
        name, config = _config(
            network_of(model, before, frozen),
            _method(method, {**settings, "memory": int(memory)} | _given(cost=cost)),
            tuple(range(int(seed), int(seed) + int(replicas))),
            dtype=getattr(torch, dtype),
            device=device,
            engine=engine,
            monitor=_monitored(monitor, holdout),
        )
        self._become(
            name,
            config,
            kind=kind,
            scale=scale,
            validation=_share(validation, config.method),
            watching=_watching(holdout, forgetting_limit),
            labels=LabelMap() if classes is None else declared(classes),
        )

    def _become(
        self,
        name: str,
        config: Config,
        *,
        kind: Kind | None,
        scale: bool | None,
        validation: float,
        watching: tuple[float, float | None] = (0.0, None),
        labels: LabelMap,
        known: Knowledge | None = None,
    ) -> None:
        """Set all that a learner has; `watching` is the share held out, and the limit."""
        self._name, self._config = name, config
        self._kind, self._scale, self._labels = kind, scale, labels
        self._validation, (self._holdout, self._limit) = validation, watching
        self._known = known
        self._previous: tuple[Knowledge | None] | None = None

    # ---- a folder --------------------------------------------------------------------------------

    def save(self, path: str | Path, *, memory: bool = True) -> Path:
        """Write the learner to a folder, from which `load` goes on to the same bits.

        The folder holds JSON and safetensors. A learner that is in it is replaced at once, or stays
        if writing fails.

        Args:
            path: The folder.
            memory: Whether the rows of the memory are written. Without them no row leaves the
                machine, and what the loaded learner learns next is not balanced by rows of the
                past. Labels, columns, categories, means and deviations are always written.

        Returns:
            The folder.

        Raises:
            FolderError: The folder cannot be written.
        """
        if not memory:
            _LOG.warning(
                "Saved without its memory: what the loaded learner learns next is not balanced by "
                "rows of the past."
            )
        return artefact.write(path, *self._packed(memory))

    def export(self, path: str | Path) -> Path:
        """Write a program of `torch.export` or ONNX that predicts the same, for any number of rows.

        It takes inputs as they come (float64; uint8 for images; of a table its columns, encoded as
        the file's "dpmcl.json" says) and returns probabilities in the order of `classes_`, or
        values. `torch.export.load(path).module()` or ONNX Runtime runs it without this package.

        Args:
            path: The file, which ends in .pt2 or .onnx (which needs the extra `onnx`).

        Returns:
            The file.

        Raises:
            SpecError: The path ends otherwise, nothing has been learned yet, or a package is
                missing.
            ModelError: The network cannot be exported.
            FolderError: The file cannot be written.
        """
        file = path_of(path)
        export(self._learned(), file)
        return file

    def _packed(self, memory: bool = True) -> tuple[artefact.About, bytes]:
        """Return all that the learner is, as JSON and the bytes of its tensors."""
        config, known = self._config, self._known
        labels = self._labels if known is None else known.form.labels
        name = plugins.name_of("method", type(config.method))
        about = artefact.About(
            method={**({"name": name} if name else {}), **config.method.to_table()},
            network=dict(config.network.table),
            seed=config.seeds[0],
            replicas=len(config.seeds),
            dtype="float64" if config.dtype == torch.float64 else "float32",
            engine=config.engine,
            kind=self._kind,
            scale=self._scale,
            validation=self._validation,
            holdout=self._holdout,
            forgetting_limit=self._limit,
            monitor=config.monitor,
            labels=artefact.Labels(**asdict(labels)),
        )
        with computing():
            return artefact.packed(about, known, memory=memory)

    def __getstate__(self) -> dict[str, Any]:
        about, content = self._packed()
        brought = None if about.network else self._config.network
        return {
            "about": about.model_dump_json(),
            "content": content,
            "model": brought,
            "method": None if "name" in about.method else type(self._config.method),
            "cost": None if artefact.cost_is_ours(about) else self._config.method.cost,
            "device": self._config.device,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        about = artefact.About.model_validate_json(state["about"])
        brought = {name: state[name] for name in ("model", "method", "cost", "device")}
        self._restore("the pickle", (about, state["content"]), **brought)

    @classmethod
    @threads(1)
    def load(
        cls,
        path: str | Path,
        *,
        model: Any = None,
        method: type[Method] | None = None,
        cost: Callable[..., Any] | None = None,
        before: str | None = None,
        frozen: Sequence[str] = (),
        device: DeviceName = "auto",
    ) -> "Learner":
        """Return a learner that was saved, which goes on where that one stopped.

        Nothing that the folder names is imported or run.

        Args:
            path: The folder.
            model: The network, where it is not one of the package; as for `Learner`.
            method: The method's class, where it is not one of the package.
            cost: The function, where it is not one of the package.
            before, frozen: As for `Learner`, with a module of your own.
            device: "auto", "cpu" or "cuda".

        Raises:
            FolderError: The folder holds no learner, or is damaged.
            SpecError: A model, a method or a cost must be brought.
            ModelError: The network is not the one that was saved.
        """
        folder, about = artefact.read(path)
        if model is None and not plugins.is_ours("network", about.network.get("name")):
            raise SpecError(
                "The network of this learner is not one of the package; bring it, as in "
                "Learner.load(path, model=...)."
            )
        learner = cls.__new__(cls)
        content = artefact.content_of(folder, about)
        brought: dict[str, Any] = {"model": model, "before": before, "frozen": frozen}
        brought |= {"method": method, "cost": cost}
        learner._restore(folder, (about, content), device=device, **brought)
        return learner

    @classmethod
    def _knowing(cls, name: str, config: Config, known: Knowledge) -> "Learner":
        """Return a learner that knows something already."""
        learner = cls.__new__(cls)
        learner._become(
            name,
            config,
            kind=known.form.kind,
            scale=known.form.scale,
            validation=0.25 if config.method.trains_on_validation else 0.0,
            labels=known.form.labels,
            known=known,
        )
        return learner

    def _restore(
        self,
        where: Any,
        packed: tuple[artefact.About, bytes],
        *,
        model: Any,
        method: type[Method] | None,
        cost: Callable[..., Any] | None,
        device: DeviceName,
        before: str | None = None,
        frozen: Sequence[str] = (),
    ) -> None:
        """Become the learner that was packed."""
        about, content = packed
        name, config = _config(
            network_of(about.network if model is None else model, before, frozen),
            artefact.method_of(about, method, cost),
            tuple(range(about.seed, about.seed + about.replicas)),
            dtype=getattr(torch, about.dtype),
            device=device,
            engine=about.engine,
            monitor=about.monitor,
        )
        labels = LabelMap(**about.labels.model_dump())
        with computing():
            known = artefact.restored(where, about, content, config)
        self._become(
            name,
            config,
            kind=about.kind,
            scale=about.scale,
            validation=about.validation,
            watching=(about.holdout, about.forgetting_limit),
            labels=labels if labels.fixed else LabelMap(),
            known=known,
        )

    # ---- learning --------------------------------------------------------------------------------

    @threads(1)
    def learn(self, x: Any, y: Any = None) -> Self:
        """Learn the next chunk.

        Args:
            x: Inputs (rows, ...), an array, tensor or list; a table (pandas, pyarrow, a mapping of
                columns, or the path of a CSV or Parquet file); or a data set of (x, y).
            y: A target for each row, or the name of a table's column; None for the column that was
                named before, and for a data set.

        Returns:
            The learner itself.

        Raises:
            DataError: The rows cannot be used, or are not like those learned before.
            SpecError: The method cannot be used in this way.
            ModelError: The network cannot be used.
            DivergenceError: Parameters are no longer finite.
        """
        target = self._target(x, y)
        x, y = _apart(x, y if target is None else target, text=self._as_text(x))
        form, part = self._read(x, y)
        if target is not None:
            form = replace(form, target=target)
            if self._known is None and self._kind is None:
                _check_amounts(target, form.labels)
        parts = dict(self._split(part))
        apart = parts.pop("holdout", None)
        with computing():
            known = learned(self._config, self._known, form, parts)
        if apart is not None:
            known = with_chunk(known, apart)
        before, self._known = self._known, known
        self._previous = (before,)
        self._tell(before, known)
        return self

    def _tell(self, before: Knowledge | None, known: Knowledge) -> None:
        """Say where a chunk cost more on older ones than it may."""
        if self._limit is None or before is None or not before.groups:
            return
        grown = cost(before, known)
        if grown > self._limit:
            _LOG.warning(
                "Chunk %d cost %.3g on earlier ones, whose limit is %.3g; learner.undo() takes it "
                "back.",
                known.chunks - 1,
                grown,
                self._limit,
            )

    def _target(self, x: Any, y: Any) -> str | None:
        """Return the name of the column of targets, if they come in one."""
        if isinstance(y, str):
            return y
        table = is_table(x) or isinstance(x, str | Path)
        remembered = self._known.form.target if self._known is not None and table else ""
        return remembered or None if y is None else None

    def _as_text(self, x: Any) -> bool:
        """Return whether "7" in a column of targets is text: as before, and at first in memory."""
        kind, labels = self._kind, self._labels
        if self._known is not None:
            kind, labels = self._known.form.kind, self._known.form.labels
        if labels.family:
            return labels.family == "strings"
        return kind != "regression" and not isinstance(x, str | Path)

    def _read(self, x: Any, y: Any) -> tuple[Form, Part]:
        """Return rows and targets as tensors, and what they have in common with those before."""
        form = None if self._known is None else self._known.form
        y = y.to_numpy() if hasattr(y, "to_numpy") else y
        if form is None:
            inputs, kind = Inputs.of(x), self._kind or kind_of(y)
            if kind == "regression" and self._labels.names:
                raise SpecError("classes= is for classification, and the targets are numbers.")
            scale = bool(inputs.fields) if self._scale is None else self._scale
            flat = np.ndim(y) == 1
            form = Form(inputs=inputs, kind=kind, labels=self._labels, flat=flat, scale=scale)
        device = device_of(self._config.device)
        values = form.inputs.read(x).to(device)
        labels, data = self._with_targets(form, values, y)
        with computing():
            if self._known is None:
                form = with_body(self._config, form, values)
            if form.body is not None:
                check_digits(data, self._config.dtype)
            part = Part(kept(form, values), data.y.to(device))
        return replace(form, labels=labels), part

    def _with_targets(self, form: Form, values: Tensor, y: Any) -> tuple[LabelMap, Labelled]:
        """Return the labels with those that are new, and inputs with targets that fit them."""
        labels, known = form.labels, self._known
        if form.kind == "classification":
            labels, targets = labels.numbered(y, "Labels")
        else:
            targets = targets_of(y, "Targets")
        data = Labelled("the chunk", "regression", values, targets)
        if form.kind == "regression" and known and data.y.shape[1] != known.setup.stream.outputs:
            raise DataError(
                f"Targets must have {known.setup.stream.outputs} values a row, as those learned "
                f"first, got {data.y.shape[1]}."
            )
        return labels, data

    def _split(self, part: Part) -> Mapping[str, Part]:
        """Return a chunk's rows by split: "train", and those held out or for validation."""
        shares = {"holdout": self._holdout, "validation": self._validation}
        if not any(shares.values()):
            return {"train": part}
        known, rows = self._known, len(part.x)
        chunks = 0 if known is None else known.chunks
        key = keys.derive(self._config.seeds[0], keys.Purpose.SPLIT, chunks)
        order = keys.permutation(key, rows).to(part.x.device)
        before = 0 if known is None else known.rows + known.held_out
        counts = {
            "holdout": math.floor((before + rows) * self._holdout)
            - (0 if known is None else known.held_out),
            "validation": max(round(self._validation * rows), 1) if self._validation else 0,
        }
        counts["holdout"] = max(min(counts["holdout"], rows - 1 - counts["validation"]), 0)
        if rows <= sum(counts.values()):
            raise DataError(f"A chunk needs a row to learn beside those held out, got {rows}.")
        out = {}
        for name, count in counts.items():
            chosen, order = order[:count].sort().values, order[count:]
            if shares[name]:
                out[name] = Part(part.x[chosen], part.y[chosen])
        train = order.sort().values
        return {"train": Part(part.x[train], part.y[train]), **out}

    # ---- answers ---------------------------------------------------------------------------------

    @overload
    def predict(self, x: Any, return_std: Literal[False] = ...) -> Array: ...

    @overload
    def predict(self, x: Any, return_std: Literal[True]) -> tuple[Array, Array]: ...

    def predict(self, x: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Return a label for each row, or the value of a regression.

        Args:
            x: Inputs, as for `learn`.
            return_std: Whether to return the deviation over replicas too, for a regression.

        Returns:
            Labels as they came (rows,), or values (rows,) or (rows, outputs) as targets came.

        Raises:
            DataError: The rows are not like those learned.
            SpecError: Nothing has been learned yet.
        """
        known = self._learned()
        if known.form.kind == "classification":
            if return_std:
                raise SpecError("return_std is for regression; predict_proba has it for classes.")
            answer: Array = self.classes_[self.predict_proba(x).argmax(-1)]
            return answer
        outputs, flat = answers(known, self._values(x)), known.form.flat
        mean, std = (
            (value[:, 0] if flat else value).numpy()
            for value in (outputs.mean(0), outputs.std(0, correction=0))
        )
        return (mean, std) if return_std else mean

    @overload
    def predict_proba(self, x: Any, return_std: Literal[False] = ...) -> Array: ...

    @overload
    def predict_proba(self, x: Any, return_std: Literal[True]) -> tuple[Array, Array]: ...

    def predict_proba(self, x: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Return the probability of each class, in the order of `classes_`.

        Args:
            x: Inputs, as for `learn`.
            return_std: Whether to return the deviation over replicas too: where they disagree, the
                learner knows little.

        Returns:
            Float64 (rows, classes), the mean over replicas; with return_std the deviations as well.

        Raises:
            SpecError: Nothing has been learned yet, or it is a regression.
        """
        known = self._learned()
        if known.form.kind == "regression":
            raise SpecError("A regression has no classes; use predict(x, return_std=True).")
        outputs = answers(known, self._values(x))
        mean, std = outputs.mean(0).numpy(), outputs.std(0, correction=0).numpy()
        return (mean, std) if return_std else mean

    def evaluate(self, x: Any, y: Any = None) -> float:
        """Return the error on rows: the share of wrong labels, or the mean squared error.

        Args:
            x, y: As for `learn`. A label that has not been learned is an error.

        Raises:
            DataError: The rows are not like those learned.
            SpecError: Nothing has been learned yet.
        """
        known, target = self._learned(), self._target(x, y)
        x, y = _apart(x, y if target is None else target, text=self._as_text(x))
        y = y.to_numpy() if hasattr(y, "to_numpy") else y
        form = replace(known.form, labels=replace(known.form.labels, fixed=False))
        _, data = self._with_targets(form, self._values(x), y)
        return error(known, data.x, data.y)

    def score_then_learn(self, x: Any, y: Any = None) -> float:
        """Return the error on a chunk before it is learned, and learn it (test, then train).

        Args:
            x, y: As for `learn`.

        Returns:
            The error, as `evaluate` has it; NaN for the first chunk, of which nothing is known.

        Raises:
            DpmclError: As for `learn`.
        """
        before = math.nan
        if self._known is not None:
            x = opened(x)  # read once for both
            before = self.evaluate(x, y)
        self.learn(x, y)
        return before

    # ---- what became of the past -----------------------------------------------------------------

    def report(self) -> Report:
        """Return the errors on what was learned, from the rows that were held out as they came.

        Raises:
            SpecError: No rows are held out, or nothing has been learned yet.
        """
        known = self._learned()
        if not known.groups:
            raise SpecError(
                "A report needs rows that were held out as they came, and kept when it was saved; "
                "make the learner with a share of them, as in holdout=0.1."
            )
        return report(known)

    def undo(self) -> Self:
        """Go back to before the last chunk was learned; once.

        Returns:
            The learner itself.

        Raises:
            SpecError: There is nothing to go back to.
        """
        if self._previous is None:
            raise SpecError(
                "Only the last chunk can be undone, once, and not after loading or pickling; save "
                "the learner to go back further."
            )
        (self._known,), self._previous = self._previous, None
        return self

    @property
    def classes_(self) -> Array:
        """Return the labels there are, in the order of `predict_proba`.

        Raises:
            SpecError: It is a regression, or nothing has been learned and no class declared.
        """
        labels = self._labels if self._known is None else self._known.form.labels
        if not labels.names:
            raise SpecError(_NOTHING if self._known is None else "A regression has no classes.")
        return labels.originals()

    def __repr__(self) -> str:
        known = self._known
        if known is None:
            return f"Learner({self._name}, nothing learned)"
        chunks = f"{known.chunks:,} chunk{'s' * (known.chunks != 1)}"
        names = known.form.labels.names
        what = "regression" if not names else f"classes {', '.join(names[:5])}"
        more = ", ..." if len(names) > 5 else ""
        return f"Learner({self._name}, {chunks}, {known.rows:,} rows, {what}{more})"

    def _values(self, x: Any) -> Tensor:
        """Return inputs as they are kept; the column of targets may be among those of a table."""
        form, x = self._learned().form, opened(x)
        if form.target and is_table(x):
            x = without(x, form.target)
        with computing():
            return kept(form, form.inputs.read(x))

    def _learned(self) -> Knowledge:
        """Return what is known."""
        if self._known is None:
            raise SpecError(_NOTHING)
        return self._known


def _config(
    network: Network, method: Method, seeds: tuple[int, ...], **options: Any
) -> tuple[str, Config]:
    """Return the title of a learner, and what it is made with."""
    name = plugins.name_of("method", type(method)) or type(method).__name__
    return f"{name}, {network.name}", Config(method=method, network=network, seeds=seeds, **options)


def _method(method: Any, settings: dict[str, Any]) -> Method:
    """Return a method with settings."""
    if isinstance(method, Method):
        return replace(method, **settings)
    if isinstance(method, type) and issubclass(method, Method):
        return method.from_table(settings, f"Method {method.__name__}:")
    if not isinstance(method, str):
        raise SpecError(
            f"method must be a name, a dpmcl.Method or a subclass of it, got {shown(method)}."
        )
    checked: Method = plugins.from_setting("method", method, **settings)
    return checked


def _given(**settings: Any) -> dict[str, Any]:
    """Return the settings that are not None."""
    return {name: value for name, value in settings.items() if value is not None}


def _share(validation: Any, method: Method) -> float:
    """Return the share of rows that are for validation, 0 for none."""
    if validation is None and not method.trains_on_validation:
        return 0.0
    number = isinstance(validation, int | float) and not isinstance(validation, bool)
    if method.trains_on_validation and number and 0 < validation < 1:
        return float(validation)
    if method.trains_on_validation:
        raise SpecError(
            "This method trains on validation rows; say how many of each chunk's, as in "
            f"validation=0.2, got {shown(validation)}."
        )
    raise SpecError("validation is for methods that train on validation rows; leave it out.")


def _watching(holdout: Any, limit: Any) -> tuple[float, float | None]:
    """Return the share of rows that is held out, and the limit of forgetting."""
    for name, value in (("holdout", holdout), ("forgetting_limit", limit)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (value is None and name != "holdout") and not (number and 0 <= value < math.inf):
            raise SpecError(f"{name} must be a number from 0, got {shown(value)}.")
    if holdout >= 1:
        raise SpecError(f"holdout must be a share below 1, got {shown(holdout)}.")
    if limit is not None and holdout == 0:
        raise SpecError(
            "forgetting_limit needs rows that are held out; set a share of them, as in holdout=0.1."
        )
    return float(holdout), limit


def _monitored(monitor: Any, holdout: Any) -> bool:
    """Return whether the conditions of Theorem 1 are watched."""
    if monitor not in (None, "stability"):
        raise SpecError(f"monitor must be 'stability' or None, got {shown(monitor)}.")
    if monitor is not None and not holdout:
        raise SpecError(
            "What the monitor finds is in the report, which needs rows that are held out; set a "
            "share of them, as in holdout=0.1."
        )
    return monitor is not None


def _check_amounts(target: str, labels: LabelMap) -> None:
    """Refuse a column of many whole numbers that may be classes or amounts, as a run does."""
    if labels.family == "whole numbers" and len(labels.names) > CATEGORIES and not labels.fixed:
        raise DataError(
            f"Column {target!r:.60} has {len(labels.names)} different whole numbers, which may be "
            "classes or amounts; set kind='classification' or kind='regression'."
        )


def _check_choices(**choices: Any) -> None:
    known = {
        "dtype": ("float32", "float64"),
        "device": get_args(DeviceName),
        "engine": get_args(EngineName),
    }
    for name, value in choices.items():
        if value not in known[name]:
            raise SpecError(f"{name} must be {' or '.join(known[name])}, got {shown(value)}.")


def _apart(x: Any, y: Any, *, text: bool) -> tuple[Any, Any]:
    """Return inputs and targets, of whatever came; `text` as for `target_apart`."""
    x = opened(x)
    if isinstance(y, str):
        if not is_table(x):
            raise DataError(f"y may name a column of a table, and x is a {type(x).__name__}.")
        return target_apart(x, y, text=text)
    if y is not None:
        return x, y
    if isinstance(x, Tensor | np.ndarray) or is_table(x):
        raise DataError(
            "A chunk needs targets; give them as y, or, of a table, the name of their column."
        )
    data = x if isinstance(x, Labelled) else read_dataset(x)
    if data.kind == "regression":
        return data.x, data.y
    return data.x, of_names(data.classes).originals()[data.y.numpy()]
