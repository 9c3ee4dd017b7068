"""Figures: what is drawn, and the files."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter1d

from conftest import full_disk, random_record
from dpmcl.core.errors import Errors
from dpmcl.exceptions import DpmclError, FolderError, SpecError
from dpmcl.results import figures
from dpmcl.results.record import Record
from dpmcl.results.store import StreamInfo
from dpmcl.results.summary import rows
from dpmcl.results.table import render
from dpmcl.study.result import Result

pytest.importorskip("matplotlib")
TASKS = 6
NAMES = tuple(f"task {k}" for k in range(TASKS))
STREAM = StreamInfo("toy", "classification", NAMES, NAMES)
MAGIC = {"png": b"\x89PNG\r\n", "svg": b"<?xml", "pdf": b"%PDF"}


RECORDS = {name: random_record(k, tasks=TASKS) for k, name in enumerate(("naive", "er"))}


def heights(figure, panel):
    return {line.get_label(): line.get_ydata() for line in figure.axes[panel].get_lines()}


def test_lines_are_means_and_bands_one_standard_error():
    figure = figures.curves(RECORDS, STREAM)
    assert [ax.get_title()[:3] for ax in figure.axes] == ["CME", "NTE"]
    for position, (name, record) in enumerate(RECORDS.items()):
        e = record.test.values
        cme = np.array([[e[r, 1 + k, : k + 1].mean() for k in range(TASKS)] for r in range(3)])
        nte = np.array([[e[r, 1 + k, k] for k in range(TASKS)] for r in range(3)])
        for panel, values in enumerate((cme, nte)):
            np.testing.assert_allclose(heights(figure, panel)[name], values.mean(0))
            se = values.std(0, ddof=1) / np.sqrt(3)
            corners = figure.axes[panel].collections[position].get_paths()[0].vertices
            for k in range(TASKS):
                ends = corners[corners[:, 0] == k + 1, 1]
                np.testing.assert_allclose(ends.min(), values.mean(0)[k] - se[k])
                np.testing.assert_allclose(ends.max(), values.mean(0)[k] + se[k])
    np.testing.assert_array_equal(figure.axes[0].get_lines()[0].get_xdata(), range(1, TASKS + 1))


def test_tasks_and_methods_are_named():
    figure = figures.curves(RECORDS, STREAM)
    assert [text.get_text() for text in figure.axes[1].get_xticklabels()] == list(NAMES)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["naive", "er"]
    eight = {f"m{k}": random_record(k, tasks=TASKS) for k in range(8)}
    lines = figures.curves(eight, STREAM).axes[0].get_lines()
    styles = {(line.get_color(), line.get_marker(), line.get_linestyle()) for line in lines}
    assert len(styles) == 8
    assert len({*figures.styles(map(str, range(40))).values()}) == 40
    one, two, four = (random_record(replicas=n, tasks=TASKS) for n in (1, 2, 4))
    title = figures.curves({"a": two, "b": four}, STREAM).get_suptitle()
    assert title == "toy, 2 to 4 replicas, band: one standard error"
    assert figures.curves({"a": one}, STREAM).get_suptitle() == "toy, 1 replica"
    sine = figures.curves(RECORDS, StreamInfo("sine", "regression", NAMES, ())).axes[0]
    assert (sine.get_yscale(), sine.get_ylabel()) == ("log", "mean squared error")
    many = StreamInfo("toy", "classification", NAMES * 3, NAMES)
    axes = figures.curves(RECORDS, many).axes[0]
    assert not {label.get_text() for label in axes.get_xticklabels()} & set(NAMES)
    assert axes.get_xlabel() == "tasks seen"
    assert figures.curves(RECORDS, STREAM).axes[0].get_xlabel() == "after task"  # of a name


def test_smoothing_changes_lines_and_is_said():
    plain, smooth = (
        figures.curves(RECORDS, STREAM),
        figures.curves(RECORDS, STREAM, figures.Look(smooth=2.0)),
    )
    for panel in (0, 1):
        for name in RECORDS:
            rough, even = heights(plain, panel)[name], heights(smooth, panel)[name]
            assert np.abs(np.diff(even)).max() < np.abs(np.diff(rough)).max()
    assert "smoothed over 2 tasks" in smooth.get_suptitle()
    values = RECORDS["er"].test.values.copy()
    values[:, [1, 3, 5]] = np.nan  # evaluated after every second task
    few = Record({"test": replace(RECORDS["er"].test, values=values)})
    rough, even = (
        heights(figures.curves({"er": few}, STREAM, figures.Look(smooth=s)), 0)["er"]
        for s in (0.0, 2.0)
    )
    np.testing.assert_allclose(even, gaussian_filter1d(rough, 1.0))
    for wrong in (-1.0, float("nan"), float("inf"), 1e9):
        with pytest.raises(SpecError, match=f"smooth must be .*, got {wrong}"):
            figures.Look(smooth=wrong)


@pytest.mark.parametrize("suffix", MAGIC)
def test_files(suffix, tmp_path):
    path = tmp_path / "figures" / f"errors.{suffix}"
    Result({}, STREAM, RECORDS).plot(path)
    assert path.read_bytes().startswith(MAGIC[suffix])
    assert path.stat().st_size > 2000
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    with full_disk(), pytest.raises(FolderError, match=r"cannot be written \(File too large"):
        Result({}, STREAM, RECORDS).plot(tmp_path / path.name)
    assert not (tmp_path / path.name).exists()


def test_what_cannot_be_drawn_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(DpmclError, match="no results"):
        figures.curves({}, STREAM)
    for name in ("errors.txt", "errors"):
        with pytest.raises(SpecError, match="one of png, svg, pdf"):
            figures.save(figures.curves(RECORDS, STREAM), tmp_path / name)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="cannot be written"):
        figures.save(figures.curves(RECORDS, STREAM), tmp_path / "file" / "errors.png")


def test_a_look_sets_the_axis_the_width_and_a_caption():
    tests = {name: record.test for name, record in RECORDS.items()}
    low = {name: Record({"test": Errors(test.seeds, test.values / 50, test.examples)})
           for name, test in tests.items()}  # fmt: skip
    assert figures.curves(low, STREAM).axes[0].get_ylim()[1] < 0.05  # from the data
    figure = figures.curves(low, STREAM, figures.Look(ylim=(0.001, 2), log=True, caption="lr $1"))
    assert figure.axes[0].get_yscale() == "log" and figure.axes[1].get_ylim() == (0.001, 2)
    assert figure.get_supxlabel() == "lr $1"
    narrow = figures.curves(RECORDS, STREAM, figures.Look(width=3.25, caption="lr $1"))
    narrow.draw_without_rendering()
    (caption,) = (text for text in narrow.axes[1].texts if text.get_text() == "lr $1")
    assert caption.get_window_extent().y0 > narrow.legends[0].get_window_extent().y1
    first, second = (ax.get_position() for ax in narrow.axes)
    assert first.y0 > second.y1 and narrow.get_figwidth() == 3.25
    limits = (1, 0), (0, float("nan")), (0, float("inf")), (0,), "ab", 5
    for wrong in ({"width": 1}, {"width": "a"}, *({"ylim": ylim} for ylim in limits)):
        with pytest.raises(SpecError, match="must be"):
            figures.Look(**wrong)
    with pytest.raises(SpecError, match=r"No setting 'widht'\. Did you mean 'width'\?"):
        Result({}, STREAM, RECORDS).plot(widht=3)


def test_names_of_tasks_are_turned_only_where_they_do_not_fit():
    def rotation(*names: str) -> float:
        figure = figures.curves(RECORDS, StreamInfo("toy", "classification", names, names))
        return figure.axes[0].get_xticklabels()[0].get_rotation()

    assert rotation(*"012345") == 0
    assert rotation(*(f"a long name {k}" for k in range(6))) == 30


def test_errors_of_zero_are_shown_on_a_logarithmic_axis():
    values = RECORDS["er"].test.values.copy()
    values[:, 1 + TASKS // 2, TASKS // 2] = 0.0  # the newest task is learned without error
    record = Record({"test": replace(RECORDS["er"].test, values=values)})
    logarithmic = figures.Look(log=True)
    ax = figures.curves({"er": record}, STREAM, logarithmic).axes[1]
    smallest = min(height for height in ax.get_lines()[0].get_ydata() if height)
    zero, low, high = ax.transAxes.inverted().transform(
        ax.transData.transform([(1, 0), (1, smallest), (1, 10 * smallest)])
    )[:, 1]
    assert 0 <= zero < low < high
    for hidden in (0.0, np.nan):  # NaN: all replicas diverged
        values[:] = hidden
        assert figures.curves({"er": record}, STREAM, logarithmic).axes[0].get_yscale() == "linear"


def test_characters_that_no_font_has_are_named_in_one_line(tmp_path, log_lines):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figures.save(
            figures.curves({"\U00013080\U00013081": RECORDS["er"]}, STREAM), tmp_path / "a.png"
        )
    (line,) = log_lines
    assert line.startswith(
        "No font of matplotlib has \U00013080 \U00013081, so a figure shows boxes"
    )


def test_errors_of_zero_are_drawn_and_an_infinite_one_is_no_warning():
    values = RECORDS["er"].test.values.copy()
    values[:, 1] = 0
    values[0, -1, 1] = np.inf
    record = Record({"test": replace(RECORDS["er"].test, values=values)}, diverged={0: None})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = figures.curves({"a": record, "b": record}, STREAM, figures.Look(log=True))
        (row,) = rows({"a": record}, STREAM)
        values[0] = np.inf
        rows({"a": record}, STREAM, ["backward_transfer", "forward_transfer"])  # inf - inf
    assert (row["cme_mean"], row["cme_se"]) == (np.inf, None)
    assert "  inf  " in render([row], "text") and '"cme_mean": null' in render([row], "json")
    assert figure.get_suptitle().startswith("toy, 3 replicas, 2 of all 6 diverged, ")
    for ax in figure.axes:  # no decades below 0
        least = min(y for line in ax.get_lines() for y in line.get_ydata() if y > 0)
        assert -least < ax.get_ylim()[0] < 0
