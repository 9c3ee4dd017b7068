"""A learner: rows come in chunks, each is learned as a task, and old ones are minded."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, overload

from numpy.typing import NDArray

from dpmcl.core.atomic import path_of
from dpmcl.core.choices import DeviceName, EngineName
from dpmcl.core.model import Kind
from dpmcl.core.threads import threads
from dpmcl.exceptions import SpecError
from dpmcl.learner import artefact
from dpmcl.learner.answers import answers, computing, error
from dpmcl.learner.chunks import check_validation, inputs_alone, read, shared_out
from dpmcl.learner.config import Config, method_of
from dpmcl.learner.export import export
from dpmcl.learner.inputs import opened
from dpmcl.learner.knowledge import Knowledge, learned
from dpmcl.learner.labels import LabelMap, declared
from dpmcl.learner.network import network_of
from dpmcl.learner.pool import Examples
from dpmcl.learner.report import Report, forgotten, report, with_chunk
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
        memory: Rows of the past that are kept, for each replica; None for 1,000, or those of a
            `dpmcl.Method`.
        seed: Of the first replica.
        replicas: Networks that learn side by side, with seeds of their own; their mean predicts.
        classes: Labels of all classes, in the order of the outputs; None adds classes as they come.
        kind: "classification" or "regression"; None to tell by the first targets.
        scale: Whether numbers (and targets of a regression) are brought to mean 0 and deviation 1,
            by the first chunk; None for tables alone, as in a run.
        validation: Share of each chunk's rows for methods that train on validation rows; None where
            `learn` is given such rows.
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
            labels=LabelMap() if classes is None else declared(classes),
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
    def _of(cls, config: Config, known: Knowledge | None) -> "Learner":
        """Return a learner that knows something already."""
        learner = cls.__new__(cls)
        learner._config, learner._known, learner._previous = config, known, None
        return learner

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
        about, content = artefact.described(self._config, self._known, memory=memory)
        return artefact.write(path, about, content)

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

    def __getstate__(self) -> dict[str, Any]:
        config = self._config
        about, content = artefact.described(config, self._known)
        return {
            "about": about.model_dump_json(),
            "content": content,
            "model": None if about.network else config.network,
            "method": None if "name" in about.method else type(config.method),
            "cost": None if about.cost_is_ours else config.method.cost,
            "device": config.device,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        about = artefact.About.model_validate_json(state.pop("about"))
        known = artefact.restored("the pickle", about, state.pop("content"), **state)
        self.__dict__.update(Learner._of(*known).__dict__)

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
        config, known = artefact.restored(
            *artefact.read(path),
            model=model,
            method=method,
            cost=cost,
            before=before,
            frozen=frozen,
            device=device,
        )
        return cls._of(config, known)

    # ---- learning --------------------------------------------------------------------------------

    @threads(1)
    def learn(self, x: Any, y: Any = None, *, validation: tuple[Any, Any] | None = None) -> Self:
        """Learn the next chunk.

        Args:
            x: Inputs (rows, ...), an array, tensor or list; a table (pandas, pyarrow, a mapping of
                columns, or the path of a CSV or Parquet file); or a data set of (x, y).
            y: A target for each row, or the name of a table's column; None for the column that was
                named before, and for a data set.
            validation: Inputs and targets for methods that train on validation rows, in place of a
                share of each chunk.

        Returns:
            The learner itself.

        Raises:
            DataError: The rows cannot be used, or are not like those learned before.
            SpecError: The method cannot be used in this way.
            ModelError: The network cannot be used.
            DivergenceError: Parameters are no longer finite.
        """
        config, before = self._config, self._known
        check_validation(config, validation)
        form, part = read(config, None if before is None else before.form, x, y)
        train, validating, apart = shared_out(config, before, part)
        if validation is not None:
            form, validating = read(config, form, *validation)
        chunk = {"train": train}
        if config.method.trains_on_validation:
            chunk["validation"] = validating
        with computing():
            known = with_chunk(learned(config, before, form, chunk), apart)
        self._known, self._previous = known, (before,)
        if before is not None:
            self._tell(before, known, part)
        return self

    def _tell(self, before: Knowledge, known: Knowledge, part: Examples) -> None:
        """Say which classes are new, and whether a chunk cost more on older ones than it may."""
        names = known.form.labels.names
        for number in range(len(before.form.labels.names), len(names)):
            rows = (part.y == number).nonzero()
            if len(rows):
                _LOG.info("New class %r, first in row %d.", names[number], int(rows[0]))
        limit, grown = self._config.forgetting_limit, 0.0
        if limit is not None and before.groups:
            grown = forgotten(before, known)
        if limit is not None and grown > limit:
            _LOG.warning(
                "Chunk %d cost %.3g on earlier ones, whose limit is %.3g; learner.undo() takes it "
                "back.",
                known.chunks - 1,
                grown,
                limit,
            )

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
        outputs, flat = answers(known, inputs_alone(known.form, x)), known.form.flat
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
        outputs = answers(known, inputs_alone(known.form, x))
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
        known = self._learned()
        form = replace(known.form, labels=replace(known.form.labels, fixed=False))
        _, part = read(self._config, form, x, y)
        return error(known, part.x, part.y)

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
        what = "regression" if not names else f"classes {', '.join(names[:5])}"
        more = ", ..." if len(names) > 5 else ""
        return f"Learner({self._config.title}, {chunks}, {known.rows:,} rows, {what}{more})"

    def _learned(self) -> Knowledge:
        """Return what is known."""
        if self._known is None:
            raise SpecError(_NOTHING)
        return self._known
