"""Gradients through a fresh Adagrad are noisy in float32, and a run says so."""

import logging

import pytest

import dpmcl

EXACT = {"methods.dpmcl.third_term": "exact"}
SECOND = {"methods.oml.reading": "nested", "methods.oml.order": 2}
SGD = {"training.optimiser": "sgd"}
DOUBLE = {"dtype": "float64"}
STARTED = {"training.optimiser": {"name": "adagrad", "initial_accumulator": 0.1}}


def said(caplog, settings) -> list[str]:
    method = next(iter(settings)).split(".")[1]
    small = {"training.updates": 2, "methods.dpmcl.kappa": 2, "stream.classes_per_task": 5}
    own = {k: v for k, v in small.items() if "methods" not in k or method in k}
    with caplog.at_level(logging.WARNING, "dpmcl"):
        dpmcl.run("digits", methods=[method], replicas=2, settings={**own, **settings})
    return [record.getMessage() for record in caplog.records if "noisy" in record.getMessage()]


@pytest.mark.parametrize("settings", [EXACT, SECOND])
def test_it_is_said_once_with_the_way_out(settings, caplog):
    (line,) = said(caplog, settings)
    assert "differentiates through a fresh Adagrad, which is noisy in float32; take " in line
    assert "dtype = 'float64', optimiser = 'sgd' for this method, or " in line


@pytest.mark.parametrize(
    "settings",
    [
        {**EXACT, **SGD},
        {**EXACT, **DOUBLE},
        {**SECOND, **STARTED},
        {**EXACT, "methods.dpmcl.buffer_state": "copied"},
        {**EXACT, "methods.dpmcl.zeta": 0},
        {"methods.dpmcl.third_term": "first"},
        {"methods.oml.order": 2},
    ],
)
def test_it_is_not_said_of_what_is_exact(settings, caplog):
    assert said(caplog, settings) == []
