"""Studies from the command line: planned, run, resumed, sharded, merged and shown."""

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from conftest import TINY_SPEC, invoke, random_record
from dpmcl.exceptions import DpmclError, FolderError, SpecError
from dpmcl.metrics.cme import cme
from dpmcl.results import paper, store
from dpmcl.results.store import Stored, StreamInfo
from dpmcl.study.forecast import Forecast, forecast_lines
from dpmcl.study.paper_studies import KAPPA, ZETA, Choice, runs
from dpmcl.study.plan import variants
from dpmcl.study.result import Result
from dpmcl.study.shard import shard_of
from dpmcl.study.studies import against_axes, table_and_figure
from dpmcl.training.job import Job
from dpmcl.training.spec import Spec
from python_process import PythonProcess

MINE = tomli_w.dumps({
    **TINY_SPEC, "replicas": 2, "methods": ["er", "dpmcl"], "engine": "auto",
    "training": {"updates": 10, "batch": 8},
    "axes": {"methods.dpmcl.zeta": [0, 2], "training.lr": [0.01, 0.1]},
})  # fmt: skip
CELLS = ["lr=0.01", "lr=0.1", "zeta=0,lr=0.01", "zeta=0,lr=0.1", "zeta=2,lr=0.01", "zeta=2,lr=0.1"]


@pytest.fixture(scope="module")
def mine(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("study") / "mine.toml"
    file.write_text(MINE)
    return file


@pytest.fixture(scope="module")
def whole(mine) -> Path:
    out = mine.parent / "whole"
    study(mine, "--out", out)
    return out


def study(*arguments: object) -> str:
    """Return the output of `dpmcl study`."""
    return invoke("study", "--tasks", 2, *arguments)


def errors(out: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in out.glob("*/errors.parquet")}


def test_a_users_study_has_a_run_for_each_combination_a_table_and_a_figure(mine, whole):
    assert sorted(errors(whole)) == CELLS
    text = study(mine, "--out", whole)  # nothing is missing
    assert text.split("\n")[0].split()[:4] == ["stream", "method", "lr", "zeta"]
    assert (whole / "mine.png").read_bytes().startswith(b"\x89PNG")
    rows = json.loads(study(mine, "--out", whole, "--format", "json").partition("\nfigure")[0])
    assert [(row["method"], row["lr"], row["zeta"]) for row in rows] == [
        ("er", 0.01, None),
        ("er", 0.1, None),
        ("dpmcl", 0.01, 0),
        ("dpmcl", 0.1, 0),
        ("dpmcl", 0.01, 2),
        ("dpmcl", 0.1, 2),
    ]


def test_a_dry_run_lists_the_jobs_and_begins_none(mine, whole, tmp_path):
    lines = study(mine, "--out", tmp_path / "new", "--dry-run").strip().split("\n")
    assert len(lines) == 7 and not (tmp_path / "new").exists()
    assert re.fullmatch(r"zeta=0,lr=0.1: dpmcl, seeds 0 to 1: \d+\.\d s", lines[3])
    assert lines[-1].startswith("6 of 6 jobs are missing: about ")
    done = study(mine, "--out", whole, "--dry-run").strip().split("\n")
    shard = study(mine, "--out", whole, "--fresh", "--shard", "6/6", "--dry-run").split("\n")
    assert shard[0].startswith("zeta=2,lr=0.1: ") and shard[1].startswith("1 of 1 jobs are missing")
    with pytest.raises(FolderError, match="holds a run with training"):
        study(mine, "--out", whole, "--set", "training.updates=9", "--dry-run")
    assert study(mine, "--shard", "7/7", "--dry-run").startswith("0 of 0 jobs are missing")
    assert done[0].endswith(": done") and done[-1].startswith("0 of 6 jobs are missing")
    more = study(mine, "--out", whole, "--replicas", "3", "--dry-run").split("\n")
    assert re.fullmatch(r"zeta=0,lr=0.1: dpmcl, seed 2: \d+\.\d s", more[3])
    gap = Forecast("run", Job("er", (0, 5)), True, 1.0)
    assert forecast_lines([gap], 1)[0] == "run: er, seeds 0, 5: 1.0 s"


def test_shards_merge_to_the_same_bytes(mine, whole, tmp_path):
    for part in ("1/2", "2/2"):
        study(mine, "--out", tmp_path / part[0], "--shard", part)
    halves = [errors(tmp_path / "1"), errors(tmp_path / "2")]
    assert sorted([*halves[0], *halves[1]]) == CELLS
    words = ["merge", *(tmp_path / name for name in ("all", "1", "2"))]
    assert "2 of er from" in invoke(*words)
    assert errors(tmp_path / "all") == errors(whole)
    assert invoke(*words) == ""  # nothing was missing
    assert (tmp_path / "all" / CELLS[0] / "parameters/er/seed-1.safetensors").exists()
    other_study = tmp_path / "other"
    study(mine, "--out", other_study, "--set", "training.updates=3", "--shard", "1/6")
    with pytest.raises(DpmclError, match=r"training\.updates = 10, got 3; merge it into"):
        invoke("merge", tmp_path / "all", other_study)
    with pytest.raises(DpmclError, match=rf"^{tmp_path / '1'}/\S+ holds a run with training"):
        invoke("merge", tmp_path / "new", tmp_path / "1", other_study)


def test_table_1_is_killed_and_goes_on_to_the_same_bytes(data, tmp_path, monkeypatch):
    monkeypatch.setenv("DPMCL_DATA", str(data))
    words = ["table1", "--streams", "digits,mnist", "--methods", "er,naive", "--replicas", "2"]
    words += ["--tasks", "2", "--set", "training.updates=40", "--set", "network.hidden=8"]
    words += ["--set", "evaluation.test_rows=50"]
    out = tmp_path / "killed"
    process = PythonProcess("-m", "dpmcl", "study", *words, "--out", str(out), folder=tmp_path)
    for _ in range(1200):
        if errors(out) or not process.running:
            break
        time.sleep(0.05)
    process.kill()
    text = study(*words, "--out", out)
    study(*words, "--out", tmp_path / "whole")
    assert errors(out) == errors(tmp_path / "whole") and sorted(errors(out)) == ["digits", "mnist"]
    (naive,) = [line for line in text.split("\n") if line.startswith("mnist   naive   CME")]
    assert "0.912(0)" in naive and naive.endswith(("within", "same order", "not reproduced"))
    (oml,) = [line for line in text.split("\n") if line.startswith("mnist   oml     CME")]
    assert oml.split()[3:] == ["0.023(0.001)", "-", "0", "not", "run"]
    assert "digits  naive" in text  # not in the paper
    assert (out / "table1.png").exists()


def test_a_figure_has_the_settings_that_a_budget_leaves():
    info = StreamInfo("digits", "classification", ("0",), ("0",))
    table = {"stream": "digits", "methods": ["dpmcl"]}
    varied = variants(table, {"methods.dpmcl.kappa": [2, 6]})
    stored = {
        variant.name: Stored(
            {**variant.table, "methods": {"dpmcl": {"updates": 8, "kappa": kappa}}},
            info,
            {"dpmcl": random_record(kappa, tasks=1)},
        )
        for variant, kappa in zip(varied, (4, 9), strict=True)
    }
    lines = [ax.get_lines()[0] for ax in against_axes(varied, stored).axes]
    assert [line.get_xdata().tolist() for line in lines] == [[4, 9], [4, 9]]


def test_the_papers_studies_are_the_presets_with_what_is_chosen():
    streams = ["sine", "mnist", "sine"]  # a stream that is named twice is one run
    table1 = runs("table1", Choice(preset="paper", streams=streams, replicas=3))
    assert [variant.name for variant in table1] == ["sine", "mnist"]
    specs = {variant.name: Spec.parse(variant.table) for variant in table1}
    assert specs["mnist"].replicas == 3 and list(specs["mnist"].methods)[:2] == ["naive", "dpmcl"]
    assert specs["mnist"].methods["dpmcl"].lr == 1e-4
    figure3 = runs("figure3", Choice(tasks=25))
    points = {(variant.point[ZETA], variant.point[KAPPA]) for variant in figure3}
    assert {(20, 200), (2, 300), (0, 200)} <= points and len(points) == len(figure3) == 11
    assert Spec.parse(figure3[0].table).stream.tasks == 25
    zeta = [variant.name for variant in runs("zeta", Choice())]
    assert len(zeta) == len(set(zeta)) == 5 * 3 * 2 * 2 + 2 + 2  # off at two rates, er at two
    on_mnist = runs("zeta", Choice(streams=["mnist"]))  # its preset has a rate for each method
    rates = {
        Spec.parse(variant.table).methods["er"].lr
        for variant in on_mnist
        if "er" in variant.table["methods"]
    }
    assert len(on_mnist) == len(zeta) and rates == {0.01, 0.01 / 3}
    with pytest.raises(SpecError, match="No study 'table2'"):
        runs("table2", Choice())
    with pytest.raises(SpecError, match="of one stream"):
        runs("figure3", Choice(streams=["mnist", "omniglot"]))


def test_a_method_of_ones_own_is_in_a_table_below_the_papers(caplog):
    info = store.StreamInfo("sine", "regression", ("0", "1", "2"), ())
    variants = runs("table1", Choice(streams=["sine"], methods=["er"]))
    records = {"er": random_record(0), "mine:Own": random_record(1)}
    result = {"sine": Result(variants[0].table, info, records)}
    text, _ = table_and_figure("table1", variants, result, "text")
    assert text.index("same order:") < text.index("sine    mine:Own")
    text, _ = table_and_figure("table1", variants, result, "json")
    assert {row["method"] for row in json.loads(text)} == set(paper.METHODS)
    assert "`dpmcl table` has that of other streams and methods" in caplog.text


def test_figure_3_has_an_axis_for_zeta_and_one_for_kappa():
    info = store.StreamInfo("omniglot", "classification", ("0", "1", "2"), ("0",))
    variants = runs("figure3", Choice())
    results = {
        variant.name: Result(variant.table, info, {"dpmcl": random_record(k)})
        for k, variant in enumerate(variants)
    }
    _, draw = table_and_figure("figure3", variants, results, "text")
    axes = draw().axes
    assert [(ax.get_xlabel(), ax.get_ylabel()) for ax in axes] == [
        ("zeta", "CME"), ("zeta", "NTE"), ("kappa", "CME"), ("kappa", "NTE"),
    ]  # fmt: skip
    for ax, axis, fixed in ((axes[0], ZETA, {KAPPA: 200}), (axes[2], KAPPA, {ZETA: 2})):
        means = {
            variant.point[axis]: cme(results[variant.name].records["dpmcl"].test).mean()
            for variant in variants
            if fixed.items() <= variant.point.items()
        }
        (line,) = ax.containers  # one method, with the other setting fixed
        np.testing.assert_allclose(line[0].get_xydata(), sorted(means.items()))


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_a_shard_is_one_of_n(text):
    with pytest.raises(SpecError, match="A shard is I/N"):
        shard_of(text)


def test_what_cannot_be_a_study_is_refused(whole, tmp_path):
    for words, message in (
        (["study", "nope"], "No study"),
        (["study", tmp_path / "none.toml"], "is not there"),
        (["run", "digits", "--sweep", "training.lr"], "--sweep takes"),
        (["run", "digits", "--sweep", "seed=1", "--sweep", "seed=2"], "varied twice"),
        (["study", "table1", "--out", whole / CELLS[0]], "needs a folder of its own"),
        (["merge", tmp_path / "x", tmp_path], "holds no run"),
        (["table", "x", "--against", "er", "--cost"], "--against and --cost are of different"),
    ):
        with pytest.raises(DpmclError, match=message):
            invoke(*words)
    assert not (tmp_path / "x").exists()
