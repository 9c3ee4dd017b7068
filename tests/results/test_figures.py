"""Figures: what is drawn, and the files."""

import numpy as np
import pytest

from dpmcl.core.errors import Errors
from dpmcl.exceptions import DpmclError, FolderError, SpecError
from dpmcl.results import figures
from dpmcl.results.record import Record
from dpmcl.results.store import StreamInfo
from dpmcl.study.study import Result, draw

pytest.importorskip("matplotlib")
TASKS = 6
NAMES = tuple(f"task {k}" for k in range(TASKS))
STREAM = StreamInfo("toy", "classification", NAMES, NAMES)
MAGIC = {"png": b"\x89PNG\r\n", "svg": b"<?xml", "pdf": b"%PDF"}


def record(replicas: int, entropy: int) -> Record:
    values = np.random.default_rng(entropy).uniform(size=(replicas, 1 + TASKS, TASKS))
    for after in range(TASKS):
        values[:, 1 + after, after + 1 :] = np.nan
    return Record({"test": Errors(tuple(range(replicas)), values, np.ones((replicas, TASKS)))})


RECORDS = {"naive": record(3, 0), "er": record(3, 1)}


def lines(figure, panel):
    return {line.get_label(): line.get_ydata() for line in figure.axes[panel].get_lines()}


def test_two_panels_a_line_and_a_band_a_method():
    figure = figures.curves(RECORDS, STREAM)
    assert len(figure.axes) == 2
    for ax in figure.axes:
        assert [line.get_label() for line in ax.get_lines()] == ["naive", "er"]
        assert len(ax.collections) == 2
        assert ax.get_xlabel() == "tasks seen, up to"
        assert [text.get_text() for text in ax.get_xticklabels()] == list(NAMES)
        assert len({line.get_color() for line in ax.get_lines()}) == 2
    assert "CME" in figure.axes[0].get_title()
    assert "NTE" in figure.axes[1].get_title()
    legend = figure.axes[1].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["naive", "er"]


def test_many_tasks_are_numbered_and_long_names_cut():
    many = StreamInfo("toy", "classification", NAMES * 3, NAMES)
    assert figures.curves(RECORDS, many).axes[0].get_xlabel() == "tasks seen"
    long = StreamInfo("toy", "classification", ("x" * 40, *NAMES[1:]), NAMES)
    labels = figures.curves(RECORDS, long).axes[0].get_xticklabels()
    assert labels[0].get_text() == "x" * 15 + "..."


def test_lines_are_means_and_bands_one_standard_error():
    figure = figures.curves(RECORDS, STREAM)
    for position, (name, found) in enumerate(RECORDS.items()):
        e = found.test.values
        cme = np.array([[e[r, 1 + k, : k + 1].mean() for k in range(TASKS)] for r in range(3)])
        nte = np.array([[e[r, 1 + k, k] for k in range(TASKS)] for r in range(3)])
        for panel, values in enumerate((cme, nte)):
            np.testing.assert_allclose(lines(figure, panel)[name], values.mean(0))
            se = values.std(0, ddof=1) / np.sqrt(3)
            corners = figure.axes[panel].collections[position].get_paths()[0].vertices
            for k in range(TASKS):
                heights = corners[corners[:, 0] == k + 1, 1]
                np.testing.assert_allclose(heights.min(), values.mean(0)[k] - se[k])
                np.testing.assert_allclose(heights.max(), values.mean(0)[k] + se[k])
    np.testing.assert_array_equal(figure.axes[0].get_lines()[0].get_xdata(), range(1, TASKS + 1))


def test_smoothing_changes_lines_and_is_said():
    plain, smooth = figures.curves(RECORDS, STREAM), figures.curves(RECORDS, STREAM, 2.0)
    for panel in (0, 1):
        for name in RECORDS:
            rough, even = lines(plain, panel)[name], lines(smooth, panel)[name]
            assert not np.allclose(rough, even)
            assert np.abs(np.diff(even)).max() < np.abs(np.diff(rough)).max()
    assert "smoothed over 2 tasks" in smooth.get_suptitle()
    assert "smoothed" not in plain.get_suptitle()


def test_the_title_says_stream_replicas_and_band():
    title = figures.curves(RECORDS, STREAM).get_suptitle()
    assert "toy" in title
    assert "3 replicas" in title
    assert "standard error" in title
    alone = figures.curves({"er": record(1, 0)}, STREAM).get_suptitle()
    assert "1 replica" in alone
    assert "replicas" not in alone
    assert "standard error" not in alone
    uneven = figures.curves({"er": record(2, 0), "naive": record(4, 1)}, STREAM)
    assert "2 to 4 replicas" in uneven.get_suptitle()


def test_one_replica_has_a_band_of_no_width():
    figure = figures.curves({"er": record(1, 0)}, STREAM)
    corners = figure.axes[0].collections[0].get_paths()[0].vertices
    line = lines(figure, 0)["er"]
    for x, y in corners:
        assert y == pytest.approx(line[int(x) - 1])


def test_regression_is_on_a_log_scale():
    figure = figures.curves(RECORDS, StreamInfo("sine", "regression", NAMES, ()))
    assert figure.axes[0].get_yscale() == "log"
    assert figure.axes[0].get_ylabel() == "mean squared error"
    assert figures.curves(RECORDS, STREAM).axes[0].get_yscale() == "linear"


def test_eight_methods_are_told_apart():
    many = {f"method {k}": record(2, k) for k in range(8)}
    figure = figures.curves(many, STREAM)
    styles = {
        (line.get_color(), line.get_marker(), line.get_linestyle())
        for line in figure.axes[0].get_lines()
    }
    assert len(figure.axes[0].get_lines()) == 8
    assert len(styles) == 8


@pytest.mark.parametrize("suffix", MAGIC)
def test_files(suffix, tmp_path):
    path = tmp_path / "deeper" / f"errors.{suffix}"
    figures.save(figures.curves(RECORDS, STREAM), path)
    assert path.read_bytes().startswith(MAGIC[suffix])
    assert path.stat().st_size > 2000
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_result_draws_into_its_folder(tmp_path):
    result = Result({}, STREAM, RECORDS)
    assert draw(result, tmp_path, "svg") == tmp_path / "figures" / "errors.svg"
    assert (tmp_path / "figures" / "errors.svg").read_bytes().startswith(MAGIC["svg"])


def test_nothing_is_drawn_for_no_results(tmp_path):
    with pytest.raises(DpmclError, match="no results"):
        figures.curves({}, STREAM)
    with pytest.raises(DpmclError, match="no results"):
        draw(Result({}, STREAM, {}), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_smoothing_may_not_be_negative():
    for smooth in (-1.0, float("nan"), float("inf"), 1e9):
        with pytest.raises(SpecError, match=f"at least 0 and at most 1000, got {smooth}"):
            figures.curves(RECORDS, STREAM, smooth)


@pytest.mark.parametrize("name", ["errors.txt", "errors"])
def test_an_unknown_format_is_refused(tmp_path, name):
    with pytest.raises(SpecError, match="one of png, svg, pdf"):
        figures.save(figures.curves(RECORDS, STREAM), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="cannot be written"):
        figures.save(figures.curves(RECORDS, STREAM), tmp_path / "file" / "errors.png")
