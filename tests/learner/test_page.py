"""The page on learners: its code runs, and gives what it says."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "learner.md"


def test_the_code_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 7
    exec("".join(blocks[:1]), names)
    assert names["learner"].predict(names["x"][:2]).tolist() == ["bolt", "bolt"]
    assert names["learner"].evaluate(names["x"], names["kind"]) < 0.1
    exec("".join(blocks[1:3]), names)
    assert names["kinds"] == ["bolt", "bolt"]
    exec(blocks[4], names)
    shares = [names[one].predict_proba(names["x"]) for one in ("learner", "again")]
    assert (shares[0] == shares[1]).all()
    exec("".join(blocks[5:]), names)
    assert names["result"].errors["er"].values.shape == (1, 4, 3)
    exec(blocks[3], names)
    assert repr(names["learner"]).startswith("Learner(er, mlp, 3 chunks, ")
