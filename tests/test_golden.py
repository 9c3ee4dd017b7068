"""The numbers of every method stay what they were, or move with a reason that users can read."""

import json
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import golden
from dpmcl import plugins
from dpmcl.methods._method import Method
from golden import Golden, gaps, main, unlisted

CHANGELOG = Path(__file__).parent.parent / "CHANGELOG.md"
KEPT = Golden.read()
CASES = golden.cases()


@pytest.mark.parametrize("name", sorted(CASES.keys() & KEPT.cases.keys()))
def test_the_numbers_stand(name):
    move = golden.moved(name, KEPT.cases[name], CASES[name]())
    if move:
        pytest.fail(golden.advice([move]), pytrace=False)


def test_every_case_has_golden_values_and_no_others_are_kept():
    gap = gaps(KEPT, CASES)
    if gap:
        pytest.fail(gap, pytrace=False)


def test_every_reason_stands_in_the_changelog():
    missing = unlisted(KEPT.reasons, CHANGELOG.read_text("utf-8"))
    if missing:
        pytest.fail(f'list under "### Moves numbers" in CHANGELOG.md: {missing}', pytrace=False)


def test_every_choice_of_every_method_and_every_optimiser_has_a_case():
    """A new value of a setting with listed values needs a line in `golden.variants`."""
    tried = [(name, {}) for name in golden.own_methods()] + list(golden.variants())
    for name, cls in golden.own_methods().items():
        made = [cls(**own) for case, own in tried if case == name]
        hints = get_type_hints(cls)
        for key in set(cls.names()) - set(Method.names()):
            choices = set(get_args(hints[key])) if isinstance(getattr(cls(), key), str) else set()
            assert choices <= {getattr(method, key) for method in made}, f"{name}: {key}"
    assert set(plugins.names("optimiser")) <= {own["optimiser"] for _, own in tried if _plain(own)}


def _plain(own):
    return isinstance(own.get("optimiser"), str)


def test_different_settings_give_different_numbers():
    """A case that equals another would watch nothing of its own."""
    seen = {}
    for name, values in KEPT.cases.items():
        other = seen.setdefault(json.dumps(values), name)
        assert other == name, f"{name} gives the numbers of {other}"


def one(sum_=6.0, errors=0.5):
    return {"errors": [[errors]], "theta": {"prediction": [[sum_, 1.0, 2.0]]}}


@pytest.fixture
def script(tmp_path, capsys):
    """Runs the script on a file of its own over two cases: (status, output, kept)."""
    file = tmp_path / "golden.json"

    def run(*arguments, **found):
        status = main(
            ["--file", str(file), *arguments],
            lambda: {name: lambda values=values: values for name, values in found.items()},
        )
        return status, capsys.readouterr().out, Golden.read(file) if file.exists() else None

    run("--write", a=one(), b=one())
    return run


@pytest.mark.parametrize(
    ("new", "where"),
    [
        (one(6.0 * (1 + 2e-9)), "a: theta[prediction][0][0] was 6.0 and is 6.00000001"),
        (one(errors=0.25), "a: errors[0][0] was 0.5 and is 0.25"),
        (one(float("nan")), "a: theta[prediction][0][0] was 6.0 and is nan"),
        ({**one(), "theta": {}}, "a: theta[prediction][0][0] is in golden.json alone"),
    ],
)
def test_a_move_says_where_and_what_to_do(script, new, where):
    status, said, _ = script(a=new, b=one())
    assert status == 1
    assert where in said
    assert 'run `python tests/golden.py --write "REASON"`' in said
    assert 'list REASON in CHANGELOG.md under "### Moves numbers"' in said


def test_values_that_moved_are_not_replaced_without_a_reason(script):
    status, said, kept = script("--write", "  ", a=one(7.0), b=one(), c=one())
    assert status == 1
    assert 'run `python tests/golden.py --write "REASON"`' in said
    assert kept == Golden([], {"a": one(), "b": one()})
    status, said, _ = script(a=one(), c=one())
    assert status == 1
    assert "lacks c and has, and the code does not make, b; run `python tests/golden.py" in said


def test_a_reason_replaces_what_moved_alone_and_is_kept(script):
    near = one(6.0 * (1 + 1e-10))
    status, said, kept = script("--write", "The draws\n changed.", a=one(7.0), b=near)
    assert status == 0
    assert "Replaced a." in said
    assert said.endswith('under "### Moves numbers":\n- The draws changed.\n')
    assert kept == Golden(["The draws changed."], {"a": one(7.0), "b": one()})
    assert script("--write", "And again.", a=one(8.0), b=one())[2].reasons == [
        "The draws changed.",
        "And again.",
    ]


def test_a_reason_is_looked_for_word_for_word():
    log = "### Moves numbers\n- ER: draws come from\n  another key (streams of tables).\n"
    assert unlisted(["ER: draws come from another key"], log) == []
    assert unlisted(["ER: Draws come from another key"], log) == ["ER: Draws come from another key"]
