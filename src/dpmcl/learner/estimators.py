"""Estimators of scikit-learn that wrap a `Learner`, for pipelines, searches and scores."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpmcl.exceptions import SpecError, needed_for, shown
from dpmcl.learner.learner import Learner
from dpmcl.methods._method import Method

with needed_for("An estimator of scikit-learn", "scikit-learn"):
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data

Array = NDArray[Any]


class _Continual(BaseEstimator, ABC):  # type: ignore[misc]
    """Base class of both estimators."""

    learner_: Learner

    def __init__(
        self,
        model: Any = None,
        *,
        method: Any = "replay",
        memory: int = 1000,
        updates: int = 100,
        batch: int = 32,
        lr: float = 0.1,
        replicas: int = 1,
        scale: bool = True,
        settings: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.model = model
        self.method = method
        self.memory = memory
        self.updates = updates
        self.batch = batch
        self.lr = lr
        self.replicas = replicas
        self.scale = scale
        self.settings = settings
        self.random_state = random_state

    def _check_unchanged(self) -> None:
        """Raise SpecError if a parameter was set to another value after the first chunk."""
        for name, value in self.get_params(deep=False).items():
            first = self._first_params[name]
            if value is not first and value != first:
                raise SpecError(
                    f"partial_fit continues with the parameters of the first chunk, and {name} was "
                    f"changed from {shown(first)} to {shown(value)}; set it back, or call fit to "
                    "begin anew."
                )

    def _new_learner(self, **kind: Any) -> Learner:
        """Return a new learner with the estimator's parameters."""
        arguments = self.get_params(deep=False)
        seed, settings = arguments.pop("random_state"), arguments.pop("settings") or {}
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(np.iinfo(np.int32).max)
        arguments.update(kind, seed=int(seed), dtype="float64")
        if not isinstance(settings, Mapping) or arguments.keys() & settings:
            raise SpecError(
                "settings must be a table of those for which the estimator has no parameter, got "
                f"{shown(settings)}; set the others by its parameters (seed by random_state)."
            )
        method = arguments["method"]
        for name in ("memory", "updates", "batch", "lr") if isinstance(method, Method) else ():
            value = getattr(method, name)
            if value not in (arguments[name], getattr(type(method), name)):
                raise SpecError(
                    f"The estimator's {name} replaces that of method, and they are "
                    f"{shown(arguments[name])} and {shown(value)}; set {name} of the estimator."
                )
        return Learner(**arguments, **settings)

    def _learn_rows(self, X: Array, y: Array, *, first: bool, **kind: Any) -> Self:
        """Learn validated rows, with a new learner for the first chunk."""
        if not first:
            self._check_unchanged()
        learner = self._new_learner(**kind) if first else self.learner_
        self.learner_ = learner.learn(X, y)
        if first:
            self._first_params = self.get_params(deep=False)
        return self

    def fit(self, X: Any, y: Any) -> Self:
        """Fit a new learner to rows, discarding what was learned before.

        Args:
            X: Inputs (rows, inputs).
            y: Target of each row.

        Returns:
            This estimator.
        """
        return self._learn(X, y, first=True)

    @abstractmethod
    def _learn(self, X: Any, y: Any, *, first: bool) -> Self:
        """Learn rows, as the first chunk or as the next one."""

    def _validated_rows(self, X: Any) -> Array:
        """Return the validated rows to predict."""
        check_is_fitted(self, "learner_")
        rows: Array = validate_data(self, X, dtype=np.float64, reset=False)
        return rows


class ContinualClassifier(ClassifierMixin, _Continual):  # type: ignore[misc]
    """Classifier for continual learning that follows the interface of scikit-learn.

    Each call of `partial_fit` learns a chunk of rows as the next task; a memory keeps rows of
    earlier chunks. New classes may appear in any call and need not be named in the first.

    Args:
        model: The network, as for `dpmcl.Learner`.
        method: The continual-learning method, as for `dpmcl.Learner`.
        memory: Number of past rows that each replica keeps.
        updates: Number of updates for each chunk.
        batch: Number of rows in a batch.
        lr: Learning rate.
        replicas: Number of networks; the mean of their outputs predicts.
        scale: Whether to standardise inputs with the means and standard deviations of the first
            chunk.
        settings: Further settings of the method, for example {"optimiser": "adam"}.
        random_state: Seed: an integer, a `numpy.random.RandomState`, or None for a seed drawn from
            NumPy's global generator.

    Attributes:
        learner_: The fitted `dpmcl.Learner`.
        classes_: Labels of the classes known so far, sorted, (classes,).
        n_features_in_: Number of inputs of a row.

    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> ContinualClassifier().partial_fit(x[y < 2], y[y < 2]).partial_fit(x[y == 2], y[y == 2])
    ContinualClassifier()
    """

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn the next chunk of rows as one task.

        Args:
            X: Inputs (rows, inputs).
            y: Label of each row.
            classes: Labels of all classes that can occur; None adds classes as they appear. Used
                in the first call only.

        Returns:
            This estimator.
        """
        return self._learn(X, y, first=not hasattr(self, "learner_"), classes=classes)

    def _learn(self, X: Any, y: Any, *, first: bool, classes: Any = None) -> Self:
        X, y = validate_data(self, X, y, dtype=np.float64, reset=first)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        classes = np.unique(classes) if first and classes is not None else None
        self._learn_rows(X, y, first=first, kind="classification", classes=classes)
        self.classes_ = np.sort(self.learner_.classes_)
        return self

    def predict(self, X: Any) -> Array:
        """Predict the label of each row.

        Args:
            X: Inputs (rows, inputs).

        Returns:
            Labels (rows,).
        """
        probabilities = self.predict_proba(X)
        labels: Array = self.classes_[probabilities.argmax(1)]
        return labels

    def predict_proba(self, X: Any) -> Array:
        """Predict the probability of each class for each row.

        Args:
            X: Inputs (rows, inputs).

        Returns:
            Probabilities (rows, classes), in the order of `classes_`.
        """
        rows = self._validated_rows(X)
        return self.learner_.predict_proba(rows)[:, np.argsort(self.learner_.classes_)]


class ContinualRegressor(RegressorMixin, _Continual):  # type: ignore[misc]
    """Regressor for continual learning that follows the interface of scikit-learn.

    Each call of `partial_fit` learns a chunk of rows as the next task; a memory keeps rows of
    earlier chunks.

    Args:
        model: The network, as for `dpmcl.Learner`.
        method: The continual-learning method, as for `dpmcl.Learner`.
        memory: Number of past rows that each replica keeps.
        updates: Number of updates for each chunk.
        batch: Number of rows in a batch.
        lr: Learning rate.
        replicas: Number of networks; the mean of their outputs predicts.
        scale: Whether to standardise inputs and targets with the means and standard deviations of
            the first chunk.
        settings: Further settings of the method, for example {"optimiser": "adam"}.
        random_state: Seed: an integer, a `numpy.random.RandomState`, or None for a seed drawn from
            NumPy's global generator.

    Attributes:
        learner_: The fitted `dpmcl.Learner`.
        n_features_in_: Number of inputs of a row.
    """

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn the next chunk of rows as one task.

        Args:
            X: Inputs (rows, inputs).
            y: Targets (rows,) or (rows, outputs).

        Returns:
            This estimator.
        """
        return self._learn(X, y, first=not hasattr(self, "learner_"))

    def _learn(self, X: Any, y: Any, *, first: bool) -> Self:
        X, y = validate_data(
            self, X, y, dtype=np.float64, reset=first, y_numeric=True, multi_output=True
        )
        y = np.asarray(y, dtype=np.float64)
        return self._learn_rows(X, y, first=first, kind="regression")

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict the value of each row.

        Args:
            X: Inputs (rows, inputs).
            return_std: Whether to return the standard deviation over replicas as well.

        Returns:
            Values in the shape of the targets, (rows,) or (rows, outputs). With `return_std`,
            values and their standard deviations.
        """
        rows = self._validated_rows(X)
        return self.learner_.predict(rows, True) if return_std else self.learner_.predict(rows)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
