"""A learner: a network that is trained on chunks of rows as they arrive, each one a task."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, overload

from numpy.typing import NDArray
from torch import Tensor

from dpmcl import plugins
from dpmcl.core.atomic import path_of
from dpmcl.core.choices import DeviceName, EngineName
from dpmcl.core.lock import locked
from dpmcl.core.model import Kind
from dpmcl.core.threads import threads
from dpmcl.data.labelled import warn_if_reordered
from dpmcl.data.scaling import warn_if_clipped
from dpmcl.exceptions import SpecError
from dpmcl.learner import artefact
from dpmcl.learner.answers import answers, computing, error
from dpmcl.learner.chunks import check_validation, read_chunk, read_inputs, split_rows
from dpmcl.learner.config import Config, method_of
from dpmcl.learner.export import export
from dpmcl.learner.inputs import as_table
from dpmcl.learner.knowledge import Knowledge, learn_chunk
from dpmcl.learner.labels import LabelMap, declared_labels
from dpmcl.learner.network import network_of
from dpmcl.learner.pool import Examples
from dpmcl.learner.report import Report, forgetting, report, with_group
from dpmcl.methods._method import Method

Array = NDArray[Any]

_LOG = logging.getLogger("dpmcl")
_NOTHING = "Nothing has been learned yet; call learn(x, y) first."


class Learner:
    """Network that learns from chunks of rows as they arrive and retains what it has learned.

    Each chunk is one task of the continual-learning method. A bounded memory keeps rows of earlier
    chunks. Predicted labels have the type of the labels learned. If a call raises an error, the
    learner is unchanged.

    Args:
        model: The network: its name ("mlp", "lenet"), a mapping with its name and settings, a
            `dpmcl.NetworkSettings`, one PyTorch module, two modules (representation and
            prediction), or a function of (shape, outputs) that returns one or two modules. None
            means "mlp". Training starts from the weights that a module has. Its last linear layer
            is replaced by a new one if it does not have the number of outputs that is needed.
        method: Name of a method, a `dpmcl.Method`, or a subclass of it. Methods that train on all
            past rows, such as "joint", cannot be used.
        cost: Cost of a row: its name ("huber", "label_smoothing") or a function of (outputs,
            targets) that returns one number for each row. None means that of the method, by
            default cross entropy for classification and squared error for regression.
        memory: Number of past rows that each replica keeps. None means 1,000, or the setting of
            `method` if that is a `dpmcl.Method`.
        seed: Seed of the first replica; the others have seed + 1, seed + 2 and so on.
        replicas: Number of networks that are trained side by side. The mean of their outputs
            predicts.
        classes: Labels of all classes, in the order of the outputs. None adds classes as they
            appear.
        kind: "classification" or "regression". None infers it from the targets of the first chunk.
        scale: Whether to standardise numeric inputs, and the targets of a regression, with the
            means and standard deviations of the first chunk. Inputs are then clipped at 10
            deviations. None standardises tables only.
        validation: Share of each chunk's rows that is set aside for methods that train on
            validation rows. None if such rows are passed to `learn`.
        holdout: Share of each chunk's rows that is held out of training, for `report`. At most 50
            rows of a chunk are kept. Above 20 groups of chunks, neighbouring groups are merged.
        forgetting_limit: Largest increase of the mean error on the rows held out of earlier chunks
            that one chunk may cause. Above it, `learn` logs a warning, and `undo` can take the
            chunk back. None means no limit. Needs `holdout`.
        monitor: "stability" checks the conditions of Theorem 1 during each chunk, for `report`.
            None checks nothing. Needs `holdout`.
        before: Name of the layer, the last step of a single module, that becomes the prediction;
            the rest becomes the representation. None means the last linear layer.
        frozen: Names of layers, of modules of your own, that are not trained: their parameters and
            running statistics stay fixed, and their dropout is off.
        dtype: Type of the parameters, "float32" or "float64".
        device: "auto", "cpu" or "cuda".
        engine: "batched" trains replicas together with `torch.func.vmap`, "looped" one after
            another; "auto" chooses.
        **settings: Further settings of the method, for example updates=100 or lr=0.05
            (`dpmcl.Method`).

    Raises:
        SpecError: An argument is invalid.
        ModelError: `model` is not a network.
        DataError: `classes` are not labels, or one is repeated.

    >>> learner = Learner(updates=50, lr=0.1)
    >>> learner.learn([[0.0, 0.1], [1.0, 0.9]] * 10, ["no", "yes"] * 10)
    Learner(replay, mlp, 1 chunk, 20 rows, classes no, yes)
    >>> learner.learn([[3.0, 3.0]] * 10, ["maybe"] * 10).predict([[3.0, 3.0], [0.0, 0.0]])
    array(['maybe', 'no'], dtype='<U5')
    """

    _clipped: frozenset[str] = frozenset()  # columns of which it was warned that rows are clipped

    def __init__(
        self,
        model: Any = None,
        *,
        method: str | type[Method] | Method = "replay",
        cost: str | Callable[..., Any] | None = None,
        memory: int | None = None,
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
        if memory is not None or not isinstance(method, Method):
            settings["memory"] = 1000 if memory is None else memory
        if cost is not None:
            settings["cost"] = cost
        self._config = Config(
            method=method_of(method, settings),
            network=network_of(model, before, frozen),
            labels=LabelMap() if classes is None else declared_labels(classes),
            seed=seed,
            replicas=replicas,
            kind=kind,
            scale=scale,
            validation=validation,
            holdout=holdout,
            forgetting_limit=forgetting_limit,
            monitor=monitor,
            dtype=dtype,
            device=device,
            engine=engine,
        )
        self._known: Knowledge | None = None
        self._previous: tuple[Knowledge | None] | None = None

    @classmethod
    def _from_knowledge(cls, config: Config, known: Knowledge | None) -> "Learner":
        """Return a learner that starts with the given knowledge; None for a new one."""
        learner = cls.__new__(cls)
        learner._config, learner._known, learner._previous = config, known, None
        return learner

    # ---- files -----------------------------------------------------------------------------------

    def save(self, path: str | Path, *, memory: bool = True) -> Path:
        """Write the learner to a folder, as JSON and safetensors.

        A learner that `load` reads from it predicts and continues learning with bit-identical
        results. If the folder already holds a learner, that one is replaced in one step; if
        writing fails, it stays.

        Args:
            path: The folder.
            memory: Whether to write the rows of the memory and those held out. Without them the
                folder contains no data rows, but what the loaded learner learns next is not
                balanced by past rows. Labels, column names, categories, means and standard
                deviations are always written.

        Returns:
            The folder.

        Raises:
            FolderError: The folder cannot be written, or another process writes to it.
            ModelError: The network takes no inputs but rows of the memory, which is not written.
        """
        if not memory:
            _LOG.warning(
                "Saved without its memory: what the loaded learner learns next is not balanced by "
                "rows of the past."
            )
        with locked(path_of(path)):
            return self._write(path, memory)

    def _write(self, path: str | Path, memory: bool = True) -> Path:
        """Write the learner to a folder that is locked."""
        about, content = artefact.describe(self._config, self._known, memory=memory)
        return artefact.write(path, about, content)

    def export(self, path: str | Path) -> Path:
        """Write the learner's predictions as a program of `torch.export` or ONNX.

        The program runs without this package, with `torch.export.load(path).module()` or ONNX
        Runtime, and takes any number of rows. Its input is float64, or uint8 for images, before
        scaling. A table is passed as numbers; "dpmcl.json", stored in the file, describes how its
        columns are encoded. The program returns probabilities in the order of `classes_`, or the
        values of a regression.

        Args:
            path: The file, ending in .pt2 or .onnx. ONNX needs the extra `onnx`.

        Returns:
            The file.

        Raises:
            SpecError: The path has another suffix, nothing has been learned yet, or a package is
                missing.
            ModelError: The network cannot be exported.
            FolderError: The file cannot be written.
        """
        file = path_of(path)
        export(self._knowledge(), file)
        return file

    def __getstate__(self) -> dict[str, Any]:
        config = self._config
        about, content = artefact.describe(config, self._known)
        network_is_ours = plugins.is_ours("network", about.network.get("name"))
        return {
            "about": about.model_dump_json(),
            "content": content,
            "model": None if network_is_ours else config.network,
            "method": type(config.method),  # its optimiser, options or discount may be the user's
            "cost": None if about.cost_is_ours else config.method.cost,
            "device": config.device,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        about = artefact.About.model_validate_json(state.pop("about"))
        known = artefact.restore("the pickle", about, state.pop("content"), **state)
        self.__dict__.update(Learner._from_knowledge(*known).__dict__)

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
        """Load a learner from a folder that `save` wrote.

        Code is never imported or run from the folder. A model, a method or a cost that is not part
        of the package must therefore be passed again.

        Args:
            path: The folder.
            model: The network if it is not one of the package, as for `Learner`.
            method: The method's class if it is not one of the package.
            cost: The cost function if it is not one of the package.
            before, frozen: As for `Learner`, with a module of your own.
            device: "auto", "cpu" or "cuda".

        Returns:
            The learner, which continues where the saved one stopped.

        Raises:
            FolderError: The folder holds no learner, or is damaged.
            SpecError: A model, a method or a cost must be passed, or the cost is not the one that
                was saved.
            ModelError: The network is not the one that was saved.
        """
        config, known = artefact.restore(
            *artefact.read(path),
            model=model,
            method=method,
            cost=cost,
            before=before,
            frozen=frozen,
            device=device,
        )
        return cls._from_knowledge(config, known)

    # ---- learning --------------------------------------------------------------------------------

    @threads(1)
    def learn(self, x: Any, y: Any = None, *, validation: tuple[Any, Any] | None = None) -> Self:
        """Train on the next chunk of rows, as one task.

        The first chunk fixes the form of the inputs (shape, columns, categories) and the kind of
        the targets. Later calls log each new class, and a warning if `forgetting_limit` is
        exceeded.

        Args:
            x: Inputs (rows, ...) as an array, tensor or list; a table (pandas, polars, pyarrow, a
                mapping of columns, the path of a CSV or Parquet file, or a Hugging Face data set
                without images); or a data set of pairs (x, y).
            y: A target for each row, or the name of the target column of a table or a Hugging Face
                data set. None for a data set (the column "label" of one of Hugging Face), or for
                a target column named in an earlier call.
            validation: Inputs and targets (x, y) for methods that train on validation rows. None
                if the learner sets aside a share of each chunk, or the method needs none.

        Returns:
            The learner itself.

        Raises:
            DataError: The rows cannot be used, or differ in form from those learned before.
            SpecError: The method cannot be used with a learner, validation rows are missing or not
                needed, or another thread has learned a chunk meanwhile.
            ModelError: The network cannot be used.
            DivergenceError: Parameters are no longer finite.
        """
        config, before = self._config, self._known
        check_validation(config, validation)
        form, examples = read_chunk(config, None if before is None else before.form, x, y)
        train, validating, held_out = split_rows(config, before, examples)
        if validation is not None:
            form, validating = read_chunk(config, form, *validation)
        chunk = {"train": train}
        if config.method.trains_on_validation:
            chunk["validation"] = validating
        with computing():
            known = with_group(learn_chunk(config, before, form, chunk), held_out)
        if self._known is not before:
            raise SpecError(
                "Another call has changed the learner meanwhile, and its chunk would be lost; call "
                "learn and undo one after another, in threads with a lock."
            )
        self._known, self._previous = known, (before,)
        self._warn_if_clipped(known, examples.x)
        if before is not None:
            self._log_changes(before, known, examples)
        return self

    def _log_changes(self, before: Knowledge, known: Knowledge, examples: Examples) -> None:
        """Log new classes, and warn if the error on older chunks grew beyond its limit."""
        names = known.form.labels.names
        for number in range(len(before.form.labels.names), len(names)):
            rows = (examples.y == number).nonzero()
            if len(rows):
                _LOG.info("New class %r, first in row %d.", names[number], int(rows[0]))
        limit = self._config.forgetting_limit
        if limit is not None and (grown := forgetting(before, known)) > limit:
            _LOG.warning(
                "Chunk %d raised the error on earlier chunks by %.3g; the limit is %.3g. "
                "learner.undo() takes it back.",
                known.chunks - 1,
                grown,
                limit,
            )

    def _warn_if_clipped(self, known: Knowledge, x: Tensor) -> None:
        """Log a warning, once for each column, if scaling clips more than a hundredth of rows."""
        stream = known.setup.stream
        y = stream.y.new_zeros(len(x), *stream.y.shape[1:])
        rows = replace(stream, x=x.to(y.device), y=y)
        self._clipped |= warn_if_clipped(rows, warned=self._clipped)

    # ---- prediction ------------------------------------------------------------------------------

    @overload
    def predict(self, x: Any, return_std: Literal[False] = ...) -> Array: ...

    @overload
    def predict(self, x: Any, return_std: Literal[True]) -> tuple[Array, Array]: ...

    def predict(self, x: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Predict the label of each row, or the value of a regression.

        Args:
            x: Inputs, as for `learn`, or a data set of inputs alone. The target column of a table,
                and the targets of a data set, are ignored.
            return_std: Whether to return the standard deviation over replicas as well; for a
                regression only.

        Returns:
            Labels (rows,), of the type learned; or values in the units and the shape of the
            targets, (rows,) or (rows, outputs). With `return_std`, values and their standard
            deviations.

        Raises:
            DataError: The rows differ in form from those learned.
            SpecError: Nothing has been learned yet, or `return_std` is set for classes.
        """
        known = self._knowledge()
        if known.form.kind == "classification":
            if return_std:
                raise SpecError("return_std is for regression; predict_proba has it for classes.")
            answer: Array = self.classes_[self.predict_proba(x).argmax(-1)]
            return answer
        mean, std = self._mean_and_std(x)
        if known.form.flat:
            mean, std = mean[:, 0], std[:, 0]
        return (mean, std) if return_std else mean

    @overload
    def predict_proba(self, x: Any, return_std: Literal[False] = ...) -> Array: ...

    @overload
    def predict_proba(self, x: Any, return_std: Literal[True]) -> tuple[Array, Array]: ...

    def predict_proba(self, x: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Predict the probability of each class for each row.

        Args:
            x: Inputs, as for `learn`, or a data set of inputs alone. The target column of a table,
                and the targets of a data set, are ignored.
            return_std: Whether to return the standard deviation over replicas as well. It is large
                where the replicas disagree, that is, where the prediction is uncertain.

        Returns:
            Probabilities, float64 (rows, classes), the mean over replicas, in the order of
            `classes_`. With `return_std`, probabilities and their standard deviations.

        Raises:
            DataError: The rows differ in form from those learned.
            SpecError: Nothing has been learned yet, or the learner is a regression.
        """
        if self._knowledge().form.kind == "regression":
            raise SpecError("A regression has no classes; use predict(x, return_std=True).")
        mean, std = self._mean_and_std(x)
        return (mean, std) if return_std else mean

    def _mean_and_std(self, x: Any) -> tuple[Array, Array]:
        """Return the mean and the standard deviation of the answers over replicas."""
        known = self._knowledge()
        inputs = read_inputs(known.form, x)
        self._warn_if_clipped(known, inputs)
        outputs = answers(known, inputs)
        return outputs.mean(0).numpy(), outputs.std(0, correction=0).numpy()

    def evaluate(self, x: Any, y: Any = None) -> float:
        """Return the error on rows: 1 - accuracy, or the mean squared error of a regression.

        Args:
            x, y: Inputs and targets, as for `learn`. A row whose label has not been learned counts
                as wrong.

        Raises:
            DataError: The rows differ in form from those learned.
            SpecError: Nothing has been learned yet.
        """
        known = self._knowledge()
        form = replace(known.form, labels=replace(known.form.labels, fixed=False))
        _, examples = read_chunk(self._config, form, x, y)
        self._warn_if_clipped(known, examples.x)
        return error(known, examples.x, examples.y)

    def score_then_learn(self, x: Any, y: Any = None) -> float:
        """Evaluate a chunk, then learn it (test, then train).

        Args:
            x, y: Inputs and targets, as for `learn`.

        Returns:
            The error before the chunk was learned, as from `evaluate`; NaN for the first chunk.

        Raises:
            DpmclError: As for `learn`.
        """
        before = math.nan
        if self._known is not None:
            warn_if_reordered(x, y)
            x = as_table(x)  # a file, or an iterator of labels, is read once for both steps
            y = list(y) if isinstance(y, Iterator) else y
            before = self.evaluate(x, y)
        self.learn(x, y)
        return before

    # ---- forgetting ------------------------------------------------------------------------------

    def report(self) -> Report:
        """Return the errors on earlier chunks, measured on the rows held out of each.

        Needs a learner with `holdout` above 0.

        Raises:
            SpecError: No rows are held out, or nothing has been learned yet.
        """
        known = self._knowledge()
        if not known.groups:
            raise SpecError(
                "A report needs rows that were held out as they came, and kept when it was saved; "
                "make the learner with a share of them, as in holdout=0.1, and learn several rows "
                "at a time (of a single one, none is held out)."
            )
        return report(known)

    def undo(self) -> Self:
        """Undo the last call of `learn`.

        Only one chunk can be undone, and not after loading or pickling.

        Returns:
            The learner itself.

        Raises:
            SpecError: There is no chunk to undo.
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
        """Labels of the classes known so far, in the order of `predict_proba`, (classes,).

        Raises:
            SpecError: The learner is a regression, or no class has been learned or declared.
        """
        labels = self._config.labels if self._known is None else self._known.form.labels
        if not labels.names:
            raise SpecError(_NOTHING if self._known is None else "A regression has no classes.")
        return labels.originals()

    def __repr__(self) -> str:
        known = self._known
        if known is None:
            return f"Learner({self._config.title}, nothing learned)"
        chunks = f"{known.chunks:,} chunk{'s' * (known.chunks != 1)}"
        names = known.form.labels.names
        kind = "regression" if not names else f"classes {', '.join(names[:5])}"
        ellipsis = ", ..." if len(names) > 5 else ""
        return f"Learner({self._config.title}, {chunks}, {known.rows:,} rows, {kind}{ellipsis})"

    def _knowledge(self) -> Knowledge:
        """Return the current knowledge; raise SpecError if nothing has been learned."""
        if self._known is None:
            raise SpecError(_NOTHING)
        return self._known
