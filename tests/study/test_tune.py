"""A search finds the better of two rates, and never looks at validation or test rows."""

import itertools
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from optuna.storages.journal import JournalFileBackend

import dpmcl
from conftest import invoke
from dpmcl.data.splits import split
from dpmcl.exceptions import DataError, SpecError
from dpmcl.results import store
from dpmcl.study.runs import run_all
from dpmcl.study.tune import FIRST_SEED, Range, Search, dimension, tune
from dpmcl.training.evaluation import Evaluation
from dpmcl.training.job import read_stream, scaled_and_split
from dpmcl.training.keeper import Keeping
from dpmcl.training.spec import Spec

TABLE = {
    "stream": "digits",
    "methods": ["er", "naive"],
    "network": {"hidden": 16},
    "training": {"updates": 20, "batch": 16},
}
SEARCH = Search(space={"training.lr": [1e-6, 1e-2]}, tasks=2)


def spec(**evaluation) -> Spec:
    return Spec.parse({**TABLE, "replicas": 2, "evaluation": evaluation})


def test_trials_are_scored_on_training_rows_alone():
    stream = read_stream(spec(), (0, 1))
    before = split(stream, (0, 1), (0.6, 0.2, 0.2))
    _, after = scaled_and_split(spec(held_out=0.25), stream, (0, 1))
    for replica in range(2):
        rows = {
            name: set(getattr(splits, part).row[replica].tolist())
            for name, splits, part in (
                ("train", after, "train"),
                ("scored", after, "test"),
                ("validation", after, "validation"),
                ("all", before, "train"),
                ("test", before, "test"),
            )
        }
        assert rows["train"] | rows["scored"] == rows["all"]
        assert not rows["train"] & rows["scored"] and not rows["scored"] & rows["test"]
        assert rows["validation"] == set(before.validation.row[replica].tolist())
    counts = [splits.offset.diff(dim=1) for splits in (after.train, after.test)]
    assert torch.equal(counts[0] + counts[1], before.train.offset.diff(dim=1))
    assert (counts[1] / (counts[0] + counts[1]) - 0.25).abs().max() < 0.02
    assert (stream.y[after.test.row] == after.test.task).all()  # tasks are classes


def test_a_task_with_one_training_row_is_refused():
    stream = dpmcl.Stream.from_arrays(torch.arange(6.0)[:, None], [0, 0, 0, 1, 1, 1])
    with pytest.raises(DataError, match="needs two training rows"):
        split(stream, (0,), (0.6, 0.2, 0.2), held_out=0.25)
    for share in (0, 1, 1.5):
        with pytest.raises(SpecError, match="held_out"):
            Evaluation(held_out=share)


def test_the_better_rate_is_found_and_run_takes_the_spec(tmp_path: Path):
    words = "tune digits --method er --method naive --vary training.lr=0.000001,0.01 --tasks 2"
    words += f" --set training.updates=20 --set network.hidden=16 --out {tmp_path}"
    assert len([line for line in invoke(*words.split()).split("\n") if line[:4] == "er: "]) == 2
    trial = store.load(tmp_path / "er-1")
    assert trial.records["er"].test.seeds == (FIRST_SEED, FIRST_SEED + 1)
    assert trial.spec["evaluation"]["held_out"] == 0.25
    result = dpmcl.run(tmp_path / "tuned.toml", replicas=1, tasks=2)
    assert result.spec["methods"]["er"]["lr"] == 0.01
    assert "held_out" not in result.spec["evaluation"]


def test_an_interrupted_search_goes_on_to_the_same_scores(tmp_path: Path):
    stopping = iter([False] * 3 + [True] * 1000)
    with pytest.raises(dpmcl.DpmclError):
        run = partial(run_all, keeping=Keeping(stop=lambda: next(stopping)))
        tune(TABLE, SEARCH, tmp_path / "a", run)
    after, lines = tune(TABLE, SEARCH, tmp_path / "a")
    again, same = tune(TABLE, SEARCH, tmp_path / "a")  # nothing is left to do
    whole, expected = tune(TABLE, SEARCH, tmp_path / "b")
    assert lines == same == expected and after == again == whole
    assert len(lines) == 4
    with pytest.raises(SpecError, match="another search of er"):
        tune(TABLE, Search(space={"training.lr": [1.0]}), tmp_path / "a")
    with pytest.raises(dpmcl.FolderError, match=r"training\.batch = 16, got 8"):
        tune({**TABLE, "training": {"updates": 20, "batch": 8}}, SEARCH, tmp_path / "a")


@pytest.mark.parametrize("first", range(2))
def test_a_search_that_was_killed_while_its_journal_was_written(first, tmp_path, monkeypatch):
    """The journal ends in half a line, and is locked, as by a process that has died."""
    table = {**TABLE, "methods": ["er"], "training": {"updates": 1}}
    space = {"training.lr": [1e-3, 1e-2], "training.batch": [4, 8]}
    search = Search(space=space, tasks=2, replicas=1)
    expected = tune(table, search, tmp_path / "whole")
    monkeypatch.chdir(tmp_path)  # optuna's lock is a link, which is broken for a relative path
    append, folder, steps = JournalFileBackend.append_logs, Path("killed"), itertools.count()

    def killed(self: Any, logs: list[Any]) -> None:
        append(self, logs)
        if next(steps) % 7 == 5:
            path = Path(self._file_path)
            path.write_bytes(path.read_bytes()[:-9])
            self._lock.acquire()
            raise KeyboardInterrupt

    monkeypatch.setattr(JournalFileBackend, "append_logs", killed)
    next(itertools.islice(steps, first, None))
    for _ in range(20):
        try:
            assert tune(table, search, folder) == expected
            break
        except KeyboardInterrupt:
            continue
    else:
        pytest.fail("the search has no end")
    (folder / "er.journal").write_text("nonsense\n")
    with pytest.raises(dpmcl.FolderError, match=r"er\.journal is damaged: .*another folder"):
        tune(table, search, folder)


def test_of_trials_with_the_same_cme_that_with_the_lowest_nte_is_best(tmp_path: Path):
    search = Search(space={"training.lr": [0.01, 0.03]}, tasks=2)
    tuned, lines = tune({**TABLE, "methods": ["naive"]}, search, tmp_path)
    assert [line.rpartition(": ")[2] for line in lines] == ["0.5", "0.5"]
    nte = [dpmcl.load(tmp_path / f"naive-{trial}").rows()[0]["nte_mean"] for trial in (0, 1)]
    assert nte[0] > nte[1] and tuned["methods"]["naive"]["lr"] == 0.03


def test_trials_with_the_same_errors_are_named_and_the_first_is_taken(tmp_path: Path, caplog):
    search = Search(space={"training.lr": [1e-12, 1e-11]}, tasks=2, replicas=1)
    tuned, _ = tune({**TABLE, "methods": ["er"]}, search, tmp_path)
    assert "er has the same errors with training.lr 1e-12 or training.lr 1e-11" in caplog.text
    assert tuned["methods"]["er"]["lr"] == 1e-12


def test_a_search_of_more_trials_goes_through_the_rest_of_the_list(tmp_path: Path):
    table = {**TABLE, "methods": ["er"]}
    search = Search(space={"training.lr": [1e-5, 1e-4, 1e-3, 1e-2]}, tasks=2, replicas=1)
    tune(table, replace(search, trials=1), tmp_path)
    _, lines = tune(table, replace(search, trials=6), tmp_path)  # there are no more than four
    assert [line.split()[2] for line in lines] == ["1e-05:", "0.0001:", "0.001:", "0.01:"]


def test_a_range_is_searched_for_as_many_trials_as_asked(tmp_path: Path):
    assert dimension("training.lr=1e-4..1") == ("training.lr", Range(1e-4, 1.0))
    search = Search(space={"training.lr": Range(1e-4, 1.0)}, trials=6, tasks=2, replicas=1)
    table = {**TABLE, "methods": ["er"], "training": {"updates": 1}}
    tune(table, replace(search, trials=4), tmp_path / "extended")
    _, lines = tune(table, search, tmp_path / "extended")
    rates = [float(line.split()[2].rstrip(":")) for line in lines]
    assert len(set(rates)) == 6 and all(1e-4 <= rate <= 1 for rate in rates)
    stopping = iter([False] * 9 + [True] * 1000)
    with pytest.raises(dpmcl.DpmclError):
        run = partial(run_all, keeping=Keeping(stop=lambda: next(stopping)))
        tune(table, search, tmp_path / "resumed", run)
    assert tune(table, search, tmp_path / "resumed")[1] == lines
    assert all(math.isfinite(float(line.rpartition(": ")[2])) for line in lines)
    with pytest.raises(SpecError, match="say how many"):
        Search(space={"training.lr": Range(1e-4, 1.0)})
    for key in ("seed", "stream.tasks"):
        with pytest.raises(SpecError, match=rf"{key}.* cannot"):
            Search(space={key: [1, 2]})
    alone = Search(space={"methods.naive.lr": [0.1, 0.2]})
    with pytest.raises(SpecError, match=r"in the same space, .*--method naive"):
        tune(TABLE, alone, tmp_path)
    for text in ("training.lr=1..0.1", "training.lr=0..1", "training.lr=1e..2"):
        with pytest.raises(SpecError, match=r"A range is LOW\.\.HIGH"):
            dimension(text)
