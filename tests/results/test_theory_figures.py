"""Figures of what was watched: the data drawn, where a condition broke, and which."""

import sys
import warnings

import numpy as np
import pytest

from dpmcl.exceptions import DpmclError, SpecError
from dpmcl.results import theory_figures
from dpmcl.results.store import StreamInfo
from dpmcl.study.result import Result
from dpmcl.theory.readings import Readings
from dpmcl.theory.stability import CONDITIONS, Reading

pytest.importorskip("matplotlib")
TASKS = 4
NAMES = tuple(f"task {k}" for k in range(TASKS))
STREAM = StreamInfo("toy", "classification", NAMES, NAMES)
UPDATES = (0, 4, 8, 9)
X = np.arange(4 * TASKS) / 4  # readings of a task are evenly spaced
HOLDS = {"beta": 30.0, "radius": 10.0, "decrease": 0.1, "dV_dt": -1.0, "dV_dt_substituted": -2.0}
INPUTS, PARAMETERS = (list(CONDITIONS).index(name) for name in ("inputs", "parameters"))


def readings(replicas=3, entropy=0, tasks=TASKS, **quantities):
    """Readings in which every condition holds, but for the quantities given."""
    positions = tuple((task, 0, update) for task in range(tasks) for update in UPDATES)
    draw = np.random.default_rng(entropy)
    values = draw.uniform(0.1, 0.5, size=(replicas, len(positions), len(Reading._fields)))
    for name, value in {**HOLDS, **quantities}.items():
        values[:, :, Reading._fields.index(name)] = value
    return Readings(tuple(range(replicas)), positions, values)


def draw_figure(what, values=None, stream=STREAM):
    """A figure of one method; matplotlib and NumPy warn of nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return theory_figures.draw({"er": readings() if values is None else values}, stream, what)


def line(ax, start):
    (match,) = [match for match in ax.get_lines() if match.get_label().startswith(start)]
    return match


def legend(ax):
    box = ax.get_legend()
    return [box.get_title().get_text(), *(text.get_text() for text in box.get_texts())]


def check_lines(ax, lines, first=0):
    for position, (start, values) in enumerate(lines.items(), first):
        mean, se = np.nanmean(values, 0), np.nanstd(values, 0, ddof=1) / np.sqrt(len(values))
        np.testing.assert_allclose(line(ax, start).get_xdata(), X)
        np.testing.assert_allclose(line(ax, start).get_ydata(), mean)
        corners = ax.collections[position].get_paths()[0].vertices
        for x, low, high in zip(X, mean - se, mean + se, strict=True):
            heights = corners[np.isclose(corners[:, 0], x), 1]
            np.testing.assert_allclose([heights.min(), heights.max()], [low, high])


def test_terms_are_means_and_bands_where_they_were_taken():
    seen = readings()
    figure = draw_figure("terms", seen)
    assert figure.get_suptitle() == (
        "toy: which term of equation (3) acts? (3 replicas, band: one standard error)"
    )
    costs, third, fourth = figure.axes
    check_lines(costs, {"$J_N$": seen["J_N"], "$J_P$": seen["J_P"]})
    for ax, term in ((third, "third"), (fourth, "fourth")):
        check_lines(ax, {"proof": seen[f"{term}_proof"], "difference": seen[f"{term}_difference"]})
        assert ax.get_yscale() == "symlog"
    assert costs.get_title() == "er"
    assert "above 0, it lowers the cost" in legend(third)[0]


def test_stability_compares_each_quantity_with_its_bound():
    seen = readings()
    seen.values[:, 4, Reading._fields.index("alpha")] = -1.0
    figure = draw_figure("stability", seen)
    assert figure.get_suptitle().startswith("toy: does Theorem 1 apply? (3 replicas, band: ")
    cost, reach, step, rate, _ = figure.axes
    assert legend(cost) == [r"cost: at most $\beta$", "$J = J_N + J_P$"]
    check_lines(cost, {"$J =": seen["J"]})
    check_lines(reach, {r"$\|J_x\|": seen["reach"]})
    check_lines(step, {"the theorem": seen["alpha_theorem"]}, first=1)
    assert np.flatnonzero(np.isnan(line(step, "taken:").get_ydata())).tolist() == [4]
    check_lines(rate, {"as printed": seen["dV_dt"], r"with $\Delta": seen["dV_dt_substituted"]})
    scales = [ax.get_yscale() for ax in (cost, reach, step, rate)]
    assert scales == ["symlog", "symlog", "log", "symlog"]
    assert [list(ax.get_lines()[-1].get_ydata()) for ax in (reach, rate)] == [[1, 1], [0, 0]]


def test_steps_that_a_logarithmic_axis_cannot_show_are_counted():
    alpha = np.full((3, len(X)), 0.5)
    alpha[:2, 1:3] = [-0.1, 0.0]
    ax = draw_figure("stability", readings(alpha=alpha)).axes[2]
    assert [text.get_text() for text in ax.texts] == [
        f"4 of {2 * 3 * len(X)} readings, at most 0, are not shown"
    ]
    assert not draw_figure("stability").axes[2].texts


def test_the_strip_shows_shares_of_replicas():
    parameters, inputs = np.full((3, 16), 1.0), np.full((3, 16), 0.5)
    parameters[:1, 6:] = parameters[:2, 10:] = 11.0
    inputs[:, 3] = 1.0
    strip = draw_figure("stability", readings(theta=parameters, reach=inputs)).axes[-1]
    cells = strip.collections[0]
    shares = np.zeros((len(CONDITIONS), 16))
    shares[INPUTS, 3] = 1
    shares[PARAMETERS, 6:] = 1 / 3
    shares[PARAMETERS, 10:] = 2 / 3
    np.testing.assert_allclose(cells.get_array(), shares)
    np.testing.assert_allclose(cells.get_coordinates()[0, :, 0], [*X, TASKS])
    assert [text.get_text() for text in strip.get_yticklabels()] == list(CONDITIONS)


@pytest.mark.parametrize("stored", [False, True])
def test_replicas_that_are_frozen_count_for_nothing(stored):
    seen = readings(reach=2.0)
    seen.values[0, 5:] = seen.values[:, 9:] = np.nan
    if stored:  # a folder keeps no reading without numbers
        seen = Readings(seen.seeds, seen.positions[:9], seen.values[:, :9])
    draw_figure("terms", seen)
    figure = draw_figure("stability", seen)
    shares = figure.axes[-1].collections[0].get_array()
    np.testing.assert_array_equal(shares[INPUTS, :9], np.ones(9))
    assert not shares[:, 9:].any()
    assert "3 of all 3 frozen" in figure.get_suptitle()


def test_what_was_not_watched_is_left_out():
    seen = readings(third_difference=np.nan, fourth_difference=np.nan)
    for ax in draw_figure("terms", seen).axes[1:]:
        assert len(legend(ax)) == 2
        assert "proof" in legend(ax)[1]
    unread = readings()
    unread.values[:] = np.nan
    figure = theory_figures.draw({"er": seen, "oml": unread}, STREAM, "terms")
    assert [ax.get_title() for ax in figure.axes if ax.get_title()] == ["er"]
    for empty in ({}, {"oml": unread}, {"er": Readings((0,), (), np.zeros((1, 0, 23)))}):
        with pytest.raises(DpmclError, match=r"Nothing was watched.*--watch stability"):
            theory_figures.draw(empty, STREAM, "stability")


def test_huge_and_infinite_numbers_are_drawn_as_far_as_they_go():
    J = np.full((3, 16), 1.0)
    J[:, 5], J[0, 6], J[:, 7] = 5e307, np.inf, -5e307
    seen = readings(J=J, dV_dt=np.where(np.isinf(J), np.nan, J), third_proof=3 * J, alpha=J)
    for what in ("terms", "stability"):
        figure = draw_figure(what, seen)
        figure.draw_without_rendering()
    heights = line(figure.axes[0], "$J =").get_ydata()
    np.testing.assert_array_equal(heights[4:8], [1.0, 1e200, np.nan, -1e200])
    cells = figure.axes[-1].collections[0].get_array()
    np.testing.assert_allclose(cells[0, 5:8], [1, 1 / 3, 0])


def test_another_figure_is_refused_and_so_is_none_of_matplotlib(monkeypatch):
    with pytest.raises(SpecError, match="errors, terms, stability or confusion, got 'costs'"):
        Result({}, STREAM, {}).plot(what="costs")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(DpmclError, match=r"pip install 'dpmcl\[plot\]'"):
        draw_figure("terms")
