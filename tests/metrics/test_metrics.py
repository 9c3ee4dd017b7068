"""Every metric on an error tensor that can be worked out by hand."""

import numpy as np
import pytest

from dpmcl import plugins
from dpmcl.core.errors import Errors
from dpmcl.metrics.cme import cme
from dpmcl.metrics.cme_micro import cme_micro
from dpmcl.metrics.nte import nte

BEFORE = [0.9, 0.95, 0.85]
AFTER = [
    [0.10, 0.90, 0.80],
    [0.05, 0.20, 0.70],
    [0.50, 0.40, 0.30],
]
BY_TASK = [BEFORE, *AFTER]
UNSEEN_LEFT_OUT = [BEFORE, [0.10, np.nan, np.nan], [0.05, 0.20, np.nan], AFTER[2]]
NOTHING_LEARNED = [[1.0, 1.0, 1.0]] * 4
NOT_MEASURED = [[np.nan] * 3] * 4
BY_HAND = {
    "accuracy": 1 - (0.50 + 0.40 + 0.30) / 3,
    "backward_transfer": ((0.10 - 0.50) + (0.20 - 0.40)) / 2,
    "cme": (0.50 + 0.40 + 0.30) / 3,
    "cme_micro": (30 * 0.50 + 10 * 0.40 + 60 * 0.30) / 100,
    "forgetting": ((0.50 - 0.05) + (0.40 - 0.20)) / 2,
    "forward_transfer": ((0.95 - 0.90) + (0.85 - 0.70)) / 2,
    "nte": 0.30,
    "nte_path": (0.10 + 0.20 + 0.30) / 3,
}
metrics = pytest.mark.parametrize("name", BY_HAND)


def errors_of(*replicas) -> Errors:
    values = np.array(replicas, dtype=np.float64)
    examples = np.tile((30, 10, 60)[: values.shape[2]], (len(values), 1))
    return Errors(tuple(range(len(values))), values, examples)


ONE = errors_of([BEFORE, *AFTER])


def check(values, *expected):
    assert values.shape == (len(expected),)
    np.testing.assert_allclose(values, expected, rtol=0, atol=1e-12)


@metrics
def test_a_metric_is_what_it_is_by_hand_for_each_replica_apart(name):
    metric = plugins.find("metric", name)
    values = metric(errors_of([BEFORE, *AFTER], NOTHING_LEARNED, NOT_MEASURED))
    learned_nothing = float(name in ("cme", "cme_micro", "nte", "nte_path"))
    check(values, BY_HAND[name], learned_nothing, np.nan)
    assert values.dtype == np.float64
    other = errors_of([BEFORE, *(np.array(AFTER) ** 2)])
    assert metric(other)[0] != values[0]


@metrics
def test_errors_on_tasks_to_come_move_forward_transfer_alone(name):
    expected = np.nan if name == "forward_transfer" else BY_HAND[name]
    check(plugins.find("metric", name)(errors_of(UNSEEN_LEFT_OUT)), expected)


@metrics
def test_a_stream_of_one_task(name):
    expected = {"accuracy": (0.8, 0.9)}
    expected |= dict.fromkeys(("cme", "cme_micro", "nte", "nte_path"), (0.2, 0.1))
    single = errors_of([[0.9], [0.2]], [[0.8], [0.1]])
    check(plugins.find("metric", name)(single), *expected.get(name, (np.nan, np.nan)))


def test_cme_after_an_earlier_task_and_without_the_new_one():
    check(cme(ONE, include_new=False), (0.50 + 0.40) / 2)
    check(cme(ONE, after=1), (0.05 + 0.20) / 2)
    check(cme(ONE, after=1, include_new=False), 0.05)
    check(cme(ONE, after=0), 0.10)
    check(cme(errors_of(BY_TASK, BY_TASK), after=0, include_new=False), np.nan, np.nan)
    check(cme_micro(ONE, after=1), (30 * 0.05 + 10 * 0.20) / 40)
    check(nte(ONE, after=0), 0.10)
    check(nte(ONE, after=1), 0.20)


@pytest.mark.parametrize("metric", [cme, cme_micro])
def test_means_over_tasks_are_undefined_where_one_was_not_evaluated(metric):
    thinned = errors_of([BEFORE, [0.1, np.nan, np.nan], [np.nan, 0.2, np.nan], AFTER[2]])
    check(metric(thinned, after=1), np.nan)
    assert metric(thinned)[0] == metric(ONE)[0]


def test_forgetting_is_below_zero_where_later_tasks_help():
    improving = [[0.5, 0.5], [0.4, 0.5], [0.1, 0.2]]
    check(plugins.find("metric", "forgetting")(errors_of(improving)), 0.1 - 0.4)
