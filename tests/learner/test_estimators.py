"""The estimators are scikit-learn's in every respect that it checks."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import check_estimator

from conftest import refused
from dpmcl import ContinualClassifier, ContinualRegressor, SpecError
from dpmcl.methods.er import ER

X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]


@pytest.mark.parametrize("kind", [ContinualClassifier, ContinualRegressor])
def test_scikit_learns_own_checks_pass_whole(kind):
    estimator = kind(updates=30)
    results = check_estimator(estimator, on_skip=None)
    skipped = {result["check_name"] for result in results if result["status"] != "passed"}
    assert skipped <= {"check_array_api_input"}  # where SCIPY_ARRAY_API is not set
    tags = estimator.__sklearn_tags__()
    assert not tags.non_deterministic
    assert not tags.no_validation


def test_classes_appear_and_stay_sorted():
    classifier = ContinualClassifier(updates=60)
    for kind in ("virginica", "setosa", "versicolor"):
        classifier.partial_fit(X[kind == NAMES], NAMES[kind == NAMES])
    assert classifier.classes_.tolist() == ["setosa", "versicolor", "virginica"]
    assert classifier.score(X, NAMES) > 0.8
    shares = classifier.predict_proba(X)
    assert (classifier.classes_[shares.argmax(1)] == classifier.predict(X)).all()
    again = pickle.loads(pickle.dumps(classifier))
    assert (again.predict_proba(X) == shares).all()
    again, classifier = (
        each.partial_fit(X, NAMES).predict_proba(X) for each in (again, classifier)
    )
    assert (again == classifier).all()


def test_parameters_that_change_after_the_first_chunk_are_refused():
    estimator = pickle.loads(pickle.dumps(ContinualClassifier(updates=1).partial_fit(X, Y)))
    estimator.set_params(lr=0.2)
    refused(lambda: estimator.partial_fit(X, Y), "lr was changed from 0.1 to 0.2", error=SpecError)
    estimator.set_params(lr=0.1).partial_fit(X, Y)
    assert estimator.set_params(lr=0.2).fit(X, Y).learner_._config.method.lr == 0.2


def test_settings_that_are_parameters_are_refused():
    for settings in ({"updates": 1}, {"seed": 1}, {"classes": [0, 1]}, ["lr"]):
        estimator = ContinualClassifier(settings=settings)
        refused(lambda fit=estimator.fit: fit(X, Y), "has no parameter, got", error=SpecError)


def test_settings_of_a_method_that_parameters_would_replace_are_refused():
    method = ER(updates=1, lr=0.5)
    estimator = ContinualClassifier(method=method, updates=1)
    refused(
        lambda: estimator.fit(X, Y), "lr replaces that of method", "0.1 and 0.5", error=SpecError
    )
    assert estimator.set_params(lr=0.5).fit(X, Y).learner_._config.method.lr == 0.5


def test_they_work_in_pipelines_and_searches():
    pipeline = make_pipeline(MinMaxScaler(), ContinualClassifier(updates=20))
    search = GridSearchCV(pipeline, {"continualclassifier__lr": [1e-6, 0.1]}, cv=2)
    assert search.fit(X, NAMES).best_params_ == {"continualclassifier__lr": 0.1}


def test_scikit_learn_is_imported_on_use_alone():
    code = "import sys, dpmcl; dpmcl.Learner(); print('sklearn' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "False\n", done.stderr
