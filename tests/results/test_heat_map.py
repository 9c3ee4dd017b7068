"""Heat maps of the error tensor."""

import numpy as np
import pytest

from conftest import random_record
from dpmcl.results.store import StreamInfo

pytest.importorskip("matplotlib")

from dpmcl.results.heat_map import heat_maps


def stream(kind: str, names: tuple[str, ...] = ("0", "1", "2")) -> StreamInfo:
    return StreamInfo("toy", kind, names, names if kind == "classification" else ())


def panels(figure):
    return [ax for ax in figure.axes if ax.images and ax.get_visible()]


def test_a_panel_has_the_means_over_seeds_and_no_value_for_tasks_to_come() -> None:
    record = random_record(0)
    record.test.values[1, 3, 0] = np.inf  # a replica that diverged is left out
    (panel,) = panels(heat_maps({"er": record}, stream("classification")))
    drawn = np.ma.filled(panel.images[0].get_array(), np.nan)
    expected = record.test.after.mean(0)
    expected[2, 0] = record.test.after[[0, 2], 2, 0].mean()
    np.testing.assert_allclose(drawn, expected)
    assert np.isnan(drawn[0, 1]) and panel.get_ylabel() == "after task"
    assert (panel.images[0].norm.vmin, panel.images[0].norm.vmax) == (0, 1)
    assert [text.get_text() for text in panel.get_xticklabels()] == ["0", "1", "2"]


def test_methods_share_a_scale_that_is_logarithmic_for_squared_errors() -> None:
    records = {f"m{k}": random_record(k) for k in range(4)}
    drawn = panels(heat_maps(records, stream("regression")))
    assert [panel.get_title() for panel in drawn] == list(records)
    scales = {(panel.images[0].norm.vmin, panel.images[0].norm.vmax) for panel in drawn}
    known = np.concatenate([record.test.after.mean(0).ravel() for record in records.values()])
    assert scales == {(np.nanmin(known), np.nanmax(known))}


def test_a_squared_error_of_zero_is_not_drawn_like_one_that_is_missing() -> None:
    record = random_record(0)
    record.test.values[:, 1, 0] = 0
    (panel,) = panels(heat_maps({"er": record}, stream("regression")))
    (image,) = panel.images
    drawn = image.norm(image.get_array())
    assert drawn[0, 0] == 0 and not np.ma.getmaskarray(drawn)[0, 0]
    assert np.ma.getmaskarray(drawn)[0, 1]


def test_long_names_give_way_to_numbers_from_one() -> None:
    figure = heat_maps(
        {"er": random_record(0)}, stream("classification", ("Latin", "Greek", "Tifinagh"))
    )
    figure.draw_without_rendering()
    labels = [text.get_text() for text in panels(figure)[0].get_xticklabels()]
    assert set(labels) <= {"0", "1", "2", "3", "4"} and "1" in labels
