"""Learners as estimators of scikit-learn, for its pipelines, searches and scores."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dpmcl.exceptions import DpmclError
from dpmcl.learner.learner import Learner

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils import check_random_state, column_or_1d
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise DpmclError(
        "ContinualClassifier and ContinualRegressor need scikit-learn; pip install scikit-learn."
    ) from error

Array = NDArray[Any]


class _Continual(BaseEstimator, ABC):  # type: ignore[misc]
    """What both estimators share."""

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

    def _new(self, **kind: Any) -> Learner:
        """Return the learner of the parameters, which has learned nothing."""
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(np.iinfo(np.int32).max)
        return Learner(
            self.model,
            method=self.method,
            memory=self.memory,
            seed=int(seed),
            replicas=self.replicas,
            scale=self.scale,
            dtype="float64",
            updates=self.updates,
            batch=self.batch,
            lr=self.lr,
            **kind,
            **(self.settings or {}),
        )

    def fit(self, X: Any, y: Any) -> Self:
        """Forget what was learned, and learn rows.

        Args:
            X: Inputs (rows, inputs).
            y: A target for each row.
        """
        return self._learn(X, y, first=True)

    @abstractmethod
    def _learn(self, X: Any, y: Any, *, first: bool) -> Self:
        """Learn rows, as the first chunk or as the next one."""

    def _rows(self, X: Any) -> Array:
        """Return the rows to predict, checked."""
        check_is_fitted(self, "learner_")
        rows: Array = validate_data(self, X, dtype=np.float64, reset=False)
        return rows


class ContinualClassifier(ClassifierMixin, _Continual):  # type: ignore[misc]
    """Classifier that goes on learning, for scikit-learn's pipelines and searches.

    `partial_fit` learns a chunk as the next task, and a memory keeps rows of the past. Classes may
    appear at any call, and the first need not name them.

    Args:
        model: The network, as for `dpmcl.Learner`.
        method: The method, as for `dpmcl.Learner`.
        memory: Rows of the past that are kept.
        updates: Updates for each chunk.
        batch: Rows a batch.
        lr: Learning rate.
        replicas: Networks whose mean predicts.
        scale: Whether inputs are brought to mean 0 and deviation 1, by the first chunk.
        settings: Further settings of the method, as in {"optimiser": "adam"}.
        random_state: Seed; None draws one from NumPy's global generator.

    Attributes:
        learner_: The `dpmcl.Learner`.
        classes_: The labels there are, sorted.
        n_features_in_: Number of inputs.

    >>> from sklearn.datasets import load_iris
    >>> x, y = load_iris(return_X_y=True)
    >>> ContinualClassifier().partial_fit(x[y < 2], y[y < 2]).partial_fit(x[y == 2], y[y == 2])
    ContinualClassifier()
    """

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn the next chunk.

        Args:
            X: Inputs (rows, inputs).
            y: A label for each row.
            classes: All labels that will ever come, or None to add classes as they come. Heeded at
                the first call.

        Returns:
            This estimator.
        """
        return self._learn(X, y, first=not hasattr(self, "learner_"), classes=classes)

    def _learn(self, X: Any, y: Any, *, first: bool, classes: Any = None) -> Self:
        X, y = validate_data(self, X, y, dtype=np.float64, reset=first)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        learner = self.learner_ if not first else self._new(
            kind="classification", classes=None if classes is None else np.unique(classes)
        )  # fmt: skip
        self.learner_ = learner.learn(X, y)
        self.classes_ = np.sort(learner.classes_)
        return self

    def predict(self, X: Any) -> Array:
        """Return a label for each row.

        Args:
            X: Inputs (rows, inputs).
        """
        shares = self.predict_proba(X)
        labels: Array = self.classes_[shares.argmax(1)]
        return labels

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, (rows, classes), in the order of `classes_`.

        Args:
            X: Inputs (rows, inputs).
        """
        rows = self._rows(X)
        return self.learner_.predict_proba(rows)[:, np.argsort(self.learner_.classes_)]


class ContinualRegressor(RegressorMixin, _Continual):  # type: ignore[misc]
    """Regressor that goes on learning, for scikit-learn's pipelines and searches.

    `partial_fit` learns a chunk as the next task, and a memory keeps rows of the past.

    Args:
        model: The network, as for `dpmcl.Learner`.
        method: The method, as for `dpmcl.Learner`.
        memory: Rows of the past that are kept.
        updates: Updates for each chunk.
        batch: Rows a batch.
        lr: Learning rate.
        replicas: Networks whose mean predicts.
        scale: Whether inputs and targets are brought to mean 0 and deviation 1, by the first chunk.
        settings: Further settings of the method, as in {"optimiser": "adam"}.
        random_state: Seed; None draws one from NumPy's global generator.

    Attributes:
        learner_: The `dpmcl.Learner`.
        n_features_in_: Number of inputs.
    """

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn the next chunk.

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
        learner = self._new(kind="regression") if first else self.learner_
        self.learner_ = learner.learn(X, np.asarray(y, dtype=np.float64))
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return the value of each row, (rows,) or (rows, outputs) as the targets came.

        Args:
            X: Inputs (rows, inputs).
            return_std: Whether to return the deviation over replicas too.
        """
        rows = self._rows(X)
        return self.learner_.predict(rows, True) if return_std else self.learner_.predict(rows)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
