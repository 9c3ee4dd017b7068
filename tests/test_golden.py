"""The numbers of every method stay the same, or move for a reason given in the changelog."""

import json
import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import golden
from dpmcl import plugins
from dpmcl.methods._method import Method
from golden import Golden

CHANGELOG = Path(__file__).parent.parent / "CHANGELOG.md"
KEPT = Golden.read()
CASES = golden.cases()


@pytest.mark.parametrize("name", sorted(CASES.keys() & KEPT.cases.keys()))
def test_the_numbers_stand(name):
    move = golden.moved(name, KEPT.cases[name], CASES[name]())
    if move:
        pytest.fail(golden.advice([move]), pytrace=False)


def test_every_case_has_golden_values_and_no_others_are_kept():
    unmatched = sorted(KEPT.cases.keys() ^ CASES.keys())
    if unmatched:
        pytest.fail(f"run `{golden.COMMAND}`: {', '.join(unmatched)}", pytrace=False)


def test_every_reason_stands_in_the_changelog():
    sections = re.split(r"^#+ ", CHANGELOG.read_text("utf-8"), flags=re.MULTILINE)
    moves = [" ".join(text.split()) for text in sections if text.startswith("Moves numbers")]
    missing = [reason for reason in KEPT.reasons if not any(reason in text for text in moves)]
    if missing:
        pytest.fail(f'list under "### Moves numbers" in CHANGELOG.md: {missing}', pytrace=False)


def test_every_choice_of_every_method_and_every_optimiser_has_a_case():
    """A new value of a setting with listed values needs a line in `golden.variants`."""
    tried = [(name, {}) for name in golden.own_methods()] + list(golden.variants())
    for name, cls in golden.own_methods().items():
        methods = [cls(**settings) for case, settings in tried if case == name]
        hints = get_type_hints(cls)
        for key in set(cls.names()) - set(Method.names()):
            choices = set(get_args(hints[key])) if isinstance(getattr(cls(), key), str) else set()
            assert choices <= {getattr(method, key) for method in methods}, f"{name}: {key}"
    assert set(plugins.names("optimiser")) <= {
        settings["optimiser"] for _, settings in tried if _names_optimiser(settings)
    }


def _names_optimiser(settings):
    return isinstance(settings.get("optimiser"), str)


def test_different_settings_give_different_numbers():
    """A case equal to another would test nothing that the other does not."""
    seen = {}
    for name, values in KEPT.cases.items():
        first = seen.setdefault(json.dumps(values), name)
        assert first == name, f"{name} gives the numbers of {first}"


def values_of(sum_: float = 6.0, errors: float = 0.5) -> golden.Values:
    return {"errors": [[errors]], "theta": {"prediction": [[sum_, 1.0, 2.0]]}}


@pytest.mark.parametrize(
    ("new", "where"),
    [
        (values_of(6.0 * (1 + 2e-9)), "a: theta[prediction][0][0] was 6.0 and is 6.00000001"),
        (values_of(errors=0.25), "a: errors[0][0] was 0.5 and is 0.25"),
        (values_of(float("nan")), "a: theta[prediction][0][0] was 6.0 and is nan"),
        ({**values_of(), "theta": {}}, "a: theta[prediction][0][0] is in golden.json alone"),
    ],
)
def test_values_that_moved_are_replaced_with_a_reason_alone(new, where):
    before = Golden([], {"a": values_of(), "b": values_of(), "old": values_of()})
    near = values_of(6.0 * (1 + 1e-10))
    with pytest.raises(ValueError, match=re.escape(where)):
        golden.rewritten(before, {"a": new, "b": near, "c": values_of()}, "")
    after = golden.rewritten(before, {"a": new, "b": near, "c": values_of()}, "The draws changed.")
    assert after == Golden(["The draws changed."], {"a": new, "b": values_of(), "c": values_of()})
    assert golden.rewritten(before, {**before.cases, "b": near}, "No reason") == before
