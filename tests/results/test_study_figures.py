"""The figures of studies: lines, bands and error bars are those of the numbers."""

import io

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter1d

from conftest import random_record
from dpmcl.metrics.cme import cme
from dpmcl.metrics.nte import nte
from dpmcl.results.store import Stored, StreamInfo

pytest.importorskip("matplotlib")

from dpmcl.results.axis_figure import draw
from dpmcl.results.trajectories import trajectories

TASKS = 6


def run(name: str, kind: str, *methods: str) -> Stored:
    info = StreamInfo(name, kind, tuple(f"task {k}" for k in range(TASKS)), ())
    return Stored({}, info, {m: random_record(len(m), tasks=TASKS, low=0.1) for m in methods})


def test_a_column_has_cme_above_and_nte_below() -> None:
    runs = {
        "a": run("sine", "regression", "er", "dpmcl"),
        "b": run("mnist", "classification", "er", "naive"),
    }
    figure = trajectories(runs)
    assert [ax.get_title() for ax in figure.axes] == ["sine", "mnist", "", ""]
    assert [ax.get_yscale() for ax in figure.axes] == ["log", "linear", "log", "linear"]
    assert figure.axes[0].get_ylabel() == "CME (mean squared error)"
    assert figure.axes[1].get_ylabel() == "error"  # another one than the first column's
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["er", "dpmcl", "naive"]
    for ax, measure in ((figure.axes[1], cme), (figure.axes[3], nte)):
        errors = runs["b"].records["er"].test
        values = np.stack([measure(errors, after=k) for k in range(TASKS)], 1)
        smooth = gaussian_filter1d(values.mean(0), 2)
        error = gaussian_filter1d(values.std(0, ddof=1) / np.sqrt(3), 2)
        np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), smooth)
        corners = ax.collections[0].get_paths()[0].vertices
        ends = corners[corners[:, 0] == 3, 1]
        np.testing.assert_allclose(
            [ends.min(), ends.max()], smooth[2] + error[2] * np.array([-1, 1])
        )
    colours = {ax.get_lines()[0].get_color() for ax in figure.axes}
    assert len(colours) == 1  # er, wherever it is
    title = "3 replicas, band: one standard error, smoothed over 2 tasks"
    assert figure.get_suptitle() == title


def test_title_and_legend_of_one_column_are_inside() -> None:
    methods = ("naive", "dpmcl", "oml", "cml", "anml", "mine:Balanced")
    figure = trajectories({"a": run("sine", "regression", *methods)})
    figure.savefig(io.BytesIO())
    for drawn in (figure._suptitle, *figure.legends):
        box = drawn.get_window_extent()
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1


def test_numbers_are_drawn_to_scale_and_words_in_order() -> None:
    by_number = {5: np.array([0.1, 0.3]), 0: np.array([0.5, np.nan, np.inf])}
    by_word = {"none": np.array([0.2]), "clip": np.array([0.4])}
    figure = draw(
        [
            ("CME", "methods.dpmcl.zeta", {"dpmcl": by_number}),
            ("NTE", "methods.dpmcl.guard", {"lr 0.1": by_word, "lr 1": by_word}),
        ]
    )
    first, second = figure.axes
    assert (first.get_xlabel(), first.get_ylabel()) == ("zeta", "CME")
    np.testing.assert_allclose(first.get_lines()[0].get_xydata(), [[0, 0.5], [5, 0.2]])
    bar = first.collections[0].get_segments()[1]
    np.testing.assert_allclose(bar, [[5, 0.1], [5, 0.3]])  # one standard error: 0.1
    assert [text.get_text() for text in second.get_xticklabels()] == ["none", "clip"]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["dpmcl", "lr 0.1", "lr 1"]
    title = "means of finite errors, 1 to 3 replicas, bars: one standard error"
    assert figure.get_suptitle() == title
