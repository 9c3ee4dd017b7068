"""The same method several times in one study, under names of the user's own."""

from dataclasses import replace
from pathlib import Path

import pytest

import dpmcl
from conftest import TINY_SPEC
from dpmcl.exceptions import FolderError, SpecError
from dpmcl.results.store import EMPTY
from dpmcl.study.identity import united_spec
from dpmcl.training.spec import Spec

METHODS = {"er": {}, "er_slow": {"method": "er", "lr": 1e-4}}
TABLE = {**TINY_SPEC, "replicas": 2, "methods": METHODS}


def test_both_are_trained_stored_and_extended(tmp_path: Path) -> None:
    first = dpmcl.run(TABLE, out=tmp_path)
    assert [row["method"] for row in first.rows()] == ["er", "er_slow"]
    slow = {**TINY_SPEC["training"], "lr": 1e-4}
    alone = dpmcl.run({**TABLE, "training": slow, "methods": {"er": {}}})
    for name, expected in (("er_slow", alone), ("er", dpmcl.run(TABLE, methods=["er"]))):
        ours, theirs = first.errors[name].values, expected.errors["er"].values
        assert (ours == theirs)[~(ours != ours)].all()
    assert (tmp_path / "parameters/er_slow/seed-1.safetensors").exists()
    assert Spec.parse(dpmcl.load(tmp_path).spec).renamed == {"er_slow": "er"}
    extended = dpmcl.run(tmp_path, methods=["er_slow"], replicas=3)
    assert [row["replicas"] for row in extended.rows()] == [2, 3]
    with pytest.raises(SpecError, match=r"'my:Er' has that of 'my\.Er'"):
        united_spec(replace(EMPTY, spec={"methods": {"my:Er": {}}}), {"methods": {"my.Er": {}}})
    with pytest.raises(FolderError, match=r"methods\.er_slow"):
        changed = {"methods": {"er": {}, "er_slow": {"method": "naive", "lr": 1e-4}}}
        dpmcl.run({**TABLE, **changed}, out=tmp_path)
