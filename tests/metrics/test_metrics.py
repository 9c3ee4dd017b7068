"""Every metric on an error tensor that can be worked out by hand."""

import numpy as np
import pytest

from dpmcl.core.errors import Errors
from dpmcl.metrics.accuracy import accuracy
from dpmcl.metrics.backward_transfer import backward_transfer
from dpmcl.metrics.cme import cme
from dpmcl.metrics.cme_micro import cme_micro
from dpmcl.metrics.forgetting import forgetting
from dpmcl.metrics.forward_transfer import forward_transfer
from dpmcl.metrics.nte import nte
from dpmcl.metrics.nte_path import nte_path

METRICS = [
    accuracy,
    backward_transfer,
    cme,
    cme_micro,
    forgetting,
    forward_transfer,
    nte,
    nte_path,
]

BEFORE = [0.9, 0.95, 0.85]
AFTER = [
    [0.10, 0.90, 0.80],
    [0.05, 0.20, 0.70],
    [0.50, 0.40, 0.30],
]
NOTHING_LEARNED = [[1.0, 1.0, 1.0]] * 4


def errors_of(*replicas) -> Errors:
    values = np.array(replicas, dtype=np.float64)
    examples = np.ones((len(values), values.shape[2]), dtype=np.int64)
    return Errors(tuple(range(len(values))), values, examples)


ONE = errors_of([BEFORE, *AFTER])
TWO = errors_of([BEFORE, *AFTER], NOTHING_LEARNED)


def check(found, *expected):
    assert found.shape == (len(expected),)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_cme_is_the_mean_of_the_last_row():
    check(cme(ONE), (0.50 + 0.40 + 0.30) / 3)


def test_cme_without_the_new_task():
    check(cme(ONE, include_new=False), (0.50 + 0.40) / 2)


def test_cme_after_an_earlier_task_counts_the_tasks_seen():
    check(cme(ONE, after=1), (0.05 + 0.20) / 2)
    check(cme(ONE, after=1, include_new=False), 0.05)
    check(cme(ONE, after=0), 0.10)


def test_cme_after_the_first_task_without_it_is_undefined():
    check(cme(TWO, after=0, include_new=False), np.nan, np.nan)


def test_cme_micro_is_the_mean_over_rows():
    examples = np.array([[30, 10, 60], [1, 1, 2]])
    errors = Errors((0, 1), TWO.values, examples)
    check(cme_micro(errors), (30 * 0.50 + 10 * 0.40 + 60 * 0.30) / 100, 1.0)
    check(cme_micro(errors, after=1), (30 * 0.05 + 10 * 0.20) / 40, 1.0)
    np.testing.assert_allclose(cme_micro(TWO), cme(TWO), rtol=0, atol=1e-15)


def test_cme_and_cme_micro_are_undefined_where_a_task_was_not_evaluated():
    thinned = errors_of([BEFORE, [0.1, np.nan, np.nan], [np.nan, 0.2, np.nan], AFTER[2]])
    for metric in (cme, cme_micro):
        check(metric(thinned, after=1), np.nan)
        assert metric(thinned)[0] == metric(ONE)[0]


def test_accuracy_is_what_cme_leaves_of_one():
    check(accuracy(ONE), 1 - (0.50 + 0.40 + 0.30) / 3)


def test_nte_is_the_newest_task_just_after_it():
    check(nte(ONE), 0.30)
    check(nte(ONE, after=0), 0.10)
    check(nte(ONE, after=1), 0.20)


def test_nte_path_is_the_mean_of_the_diagonal():
    check(nte_path(ONE), (0.10 + 0.20 + 0.30) / 3)


def test_forgetting_is_the_rise_from_the_best():
    check(forgetting(ONE), ((0.50 - 0.05) + (0.40 - 0.20)) / 2)


def test_forgetting_below_zero_where_later_tasks_help():
    improving = [[0.5, 0.5], [0.4, 0.5], [0.1, 0.2]]
    check(forgetting(errors_of(improving)), 0.1 - 0.4)


def test_backward_transfer_is_the_fall_from_just_after_learning():
    check(backward_transfer(ONE), ((0.10 - 0.50) + (0.20 - 0.40)) / 2)


def test_forward_transfer_is_the_fall_before_learning():
    check(forward_transfer(ONE), ((0.95 - 0.90) + (0.85 - 0.70)) / 2)


def test_forward_transfer_is_undefined_where_the_future_was_not_evaluated():
    values = [BEFORE, [0.10, np.nan, np.nan], [0.05, 0.20, np.nan], AFTER[2]]
    check(forward_transfer(errors_of(values)), np.nan)


@pytest.mark.parametrize("metric", [m for m in METRICS if m is not forward_transfer])
def test_tasks_of_the_future_move_no_other_metric(metric):
    values = [BEFORE, [0.10, np.nan, np.nan], [0.05, 0.20, np.nan], AFTER[2]]
    np.testing.assert_array_equal(metric(errors_of(values)), metric(ONE))


@pytest.mark.parametrize("metric", METRICS)
def test_replicas_are_measured_apart(metric):
    other = [BEFORE, *(np.array(AFTER) ** 2)]
    together = metric(errors_of([BEFORE, *AFTER], other))
    assert together.shape == (2,)
    assert together.dtype == np.float64
    np.testing.assert_array_equal(together[:1], metric(ONE))
    np.testing.assert_array_equal(together[1:], metric(errors_of(other)))
    assert together[0] != together[1]


@pytest.mark.parametrize("metric", METRICS)
def test_metrics_of_a_replica_that_learned_nothing(metric):
    expected = 1.0 if metric in (cme, cme_micro, nte, nte_path) else 0.0
    check(metric(errors_of(NOTHING_LEARNED)), expected)


@pytest.mark.parametrize("metric", METRICS)
def test_a_replica_that_was_not_measured_is_undefined_and_moves_no_other(metric):
    found = metric(errors_of([BEFORE, *AFTER], [[np.nan] * 3] * 4))
    assert np.isnan(found[1])
    assert found[0] == metric(ONE)[0]


def test_a_stream_of_one_task():
    single = errors_of([[0.9], [0.2]], [[0.8], [0.1]])
    for metric in (cme, cme_micro, nte, nte_path):
        check(metric(single), 0.2, 0.1)
    check(accuracy(single), 0.8, 0.9)
    for metric in (backward_transfer, forgetting, forward_transfer):
        check(metric(single), np.nan, np.nan)


def test_the_tensor_holds_what_was_before_apart():
    np.testing.assert_array_equal(ONE.before, [BEFORE])
    np.testing.assert_array_equal(ONE.after, [AFTER])
    assert ONE.tasks == 3
