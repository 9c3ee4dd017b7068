"""Search for settings, with the same space and the same number of trials for every method."""

import itertools
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tomli_w

from dpmcl.core.atomic import write_text
from dpmcl.core.errors import Errors
from dpmcl.core.lock import locked
from dpmcl.exceptions import DpmclError, FolderError, SpecError, needed_for, reason, shown
from dpmcl.metrics.cme import cme
from dpmcl.metrics.nte import nte
from dpmcl.study import identity
from dpmcl.study.plan import axis, check_axis, owner_of
from dpmcl.study.result import Result
from dpmcl.study.runs import Planned, run_all
from dpmcl.training import spec
from dpmcl.training.spec import Spec

if TYPE_CHECKING:
    import optuna

_LOG = logging.getLogger("dpmcl")

FIRST_SEED = 1_000_000
"""First seed of a search. Studies begin at 0, so their seeds differ."""

HELD_OUT = 0.25
"""Fraction of the training rows on which trials are scored."""


class Range(NamedTuple):
    """Numbers from low to high, searched on a logarithmic scale."""

    low: float
    high: float


Space = Mapping[str, Sequence[Any] | Range]
"""The values or the range of each searched setting, by its dotted name."""

_AT_ONCE = 4
"""New trials of each method that run before their scores are used, in a space with a range."""

_SET_BY_SEARCH = ("stream.tasks", "evaluation.held_out")
"""Settings that a search sets for its own trials."""

RATES = {"training.lr": [1e-4, 1e-3, 1e-2, 1e-1]}
"""The default space: four learning rates on a logarithmic grid."""


@dataclass(frozen=True, kw_only=True)
class Search:
    """Rules of a search.

    Attributes:
        space: Settings to search, the same for every method.
        trials: Number of trials of each method; a space of lists has no more than all combinations,
            which None takes.
        tasks: Number of tasks of a trial, the stream's first ones.
        replicas: Number of seeds of a trial.
    """

    space: Space
    trials: int | None = None
    tasks: int = 3
    replicas: int = 2

    def __post_init__(self) -> None:
        for key, values in self.space.items():
            check_axis(key, list(values))
            if key in _SET_BY_SEARCH:
                raise SpecError(f"A search sets {key} itself; it cannot search it.")
        if self.trials is None and any(isinstance(v, Range) for v in self.space.values()):
            raise SpecError("A range has no end of trials; say how many, as in --trials 20.")
        if self.trials is not None and self.trials < 1:
            raise SpecError(f"A search needs at least one trial, got {self.trials}.")

    @property
    def count(self) -> int:
        """Number of trials of each method."""
        lists = [values for values in self.space.values() if not isinstance(values, Range)]
        if self.trials is not None and len(lists) < len(self.space):
            return self.trials
        combinations = math.prod(map(len, lists))
        return min(self.trials or combinations, combinations)


def dimension(text: str) -> tuple[str, Sequence[Any] | Range]:
    """Return the setting in a text and its values or range.

    Args:
        text: Values, as in "training.lr=0.01,0.1", or a range, as in "training.lr=1e-4..1".

    Raises:
        SpecError: The text has neither form.

    >>> dimension("training.lr=1e-4..1")
    ('training.lr', Range(low=0.0001, high=1.0))
    """
    match = re.fullmatch(r"\s*([^=]+?)\s*=\s*([0-9.e+-]+?)\.\.([0-9.e+-]+)\s*", text)
    if match is None:
        return axis(text)
    try:
        low, high = float(match[2]), float(match[3])
    except ValueError:
        low = high = math.nan
    if not 0 < low < high < math.inf:
        raise SpecError(f"A range is LOW..HIGH with 0 < LOW < HIGH, got {shown(text)}.")
    return match[1], Range(low, high)


def tune(
    table: Mapping[str, Any],
    search: Search,
    folder: Path,
    run: Callable[[Sequence[Planned]], list[Result]] = run_all,
) -> tuple[dict[str, Any], list[str]]:
    """Search settings for each method of a spec, and write the spec with the best ones.

    The score of a trial is its mean CME over seeds after the last of its tasks, on rows held out of
    the *training* rows; of trials with the same CME, the one with the lowest NTE is the best, and
    of those with the same NTE too the first, with a warning.
    Validation rows, on which some methods train, and test rows are never used. The seeds start at
    `FIRST_SEED`. An interrupted search resumes.

    Args:
        table: The spec, which may have short forms; each of its methods is searched separately.
        search: Rules of the search.
        folder: Folder for trials, journals and tuned.toml.
        run: Makes runs side by side and returns their results, as `run_all` does.

    Returns:
        The table of the spec with the best settings, and one line for each trial.

    Raises:
        SpecError: The spec or the space breaks a rule.
        FolderError: A file in the folder is damaged, or another process writes to it.
        DpmclError: Optuna is not installed, or all trials of a method diverged.
    """
    base = {key: v for key, v in spec.normalised(table).items() if key != "tuned_code"}
    for key, owner in ((key, owner_of(key)) for key in search.space):
        if owner is not None and list(base["methods"]) != [owner]:
            raise SpecError(
                f"Every method is searched in the same space, and '{key}' is a setting of one; "
                f"search that one by itself, as with --method {owner}."
            )
    with locked(folder):
        return _searched(base, search, folder, run)


def _searched(
    base: Mapping[str, Any],
    search: Search,
    folder: Path,
    run: Callable[[Sequence[Planned]], list[Result]],
) -> tuple[dict[str, Any], list[str]]:
    """Search in a folder that is locked, and return what `tune` returns."""
    journals = {name: _journal(name, search, folder) for name in base["methods"]}
    scored: dict[tuple[str, int], _Score] = {}
    while trials := [
        trial
        for name, journal in journals.items()
        for trial in _trials(name, journal, search)
        if trial[:2] not in scored
    ]:
        # Finished trials too: `run` refuses those of other settings, data or code.
        results = run([_planned(trial, base, search, folder) for trial in trials])
        for result, (name, number, _) in zip(results, trials, strict=True):
            scored[name, number] = _score(result.records[name].test)
            journals[name].tell(number, scored[name, number].cme, skip_if_finished=True)
    tuned, lines = dict(base), []
    for name, journal in journals.items():
        for trial in journal.trials:
            lines.append(f"{name}: {_settings_text(trial.params)}: {trial.value:.4g}")
        lowest = min(scored[name, trial.number] for trial in journal.trials)
        if not math.isfinite(lowest.cme):
            raise DpmclError(f"All trials of {name} diverged; search elsewhere, as with --vary.")
        best = [trial.params for trial in journal.trials if scored[name, trial.number] == lowest]
        if len(best) > 1:
            _LOG.warning(
                f"{name} has the same errors with {' or '.join(map(_settings_text, best))}, and "
                "the first is taken; search on more tasks or replicas to tell them apart."
            )
        tuned = _tuned(tuned, name, best[0])
    code = identity.code_hashes(identity.sources(Spec.parse(tuned)))
    tuned |= {"tuned_code": code} if code else {}
    write_text(folder / "tuned.toml", tomli_w.dumps(tuned))
    return tuned, lines


def _settings_text(settings: Mapping[str, Any]) -> str:
    """Return the settings of a trial, for lines and messages."""
    return ", ".join(f"{key} {value}" for key, value in settings.items())


_Trial = tuple[str, int, Mapping[str, Any]]
"""Method, number and settings of a trial."""


class _Score(NamedTuple):
    """Mean errors of a trial over its seeds after its last task; infinite if one diverged.

    Attributes:
        cme: Mean CME, without its last digits, so that rounding decides between no two trials.
        nte: Mean NTE.
    """

    cme: float
    nte: float


def _journal(name: str, search: Search, folder: Path) -> "optuna.Study":
    """Return the journal of a method's trials, new or continued."""
    with needed_for("A search", "dpmcl[tune]"):
        import optuna
        from optuna.storages.journal import JournalFileBackend
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    file = folder / f"{name.replace(':', '.')}.journal"
    _remove_unfinished(file)
    try:
        journal = optuna.create_study(
            storage=optuna.storages.JournalStorage(JournalFileBackend(os.fspath(file))),
            study_name=name,
            direction="minimize",
            load_if_exists=True,
        )
    except (ValueError, LookupError, TypeError) as error:
        raise FolderError(
            f"{file} is damaged: {reason(error)}. Choose another folder with --out."
        ) from None
    description = repr((dict(search.space), search.tasks, search.replicas))
    if journal.user_attrs.get("search", description) != description:
        raise SpecError(
            f"{folder} holds another search of {name}; choose another folder with --out."
        )
    journal.set_user_attr("search", description)
    lists = [values for values in search.space.values() if not isinstance(values, Range)]
    if len(lists) == len(search.space):
        known = len(journal.trials)
        for values in itertools.islice(itertools.product(*lists), known, max(known, search.count)):
            journal.enqueue_trial(dict(zip(search.space, values, strict=True)))
    return journal


def _remove_unfinished(journal: Path) -> None:
    """Remove what a process that was killed left: the journal's lock, and half a line."""
    for lock in journal.parent.glob(f"{journal.name}.lock*"):
        lock.unlink()
    if journal.is_file():
        content = journal.read_bytes()
        os.truncate(journal, content.rfind(b"\n") + 1)


def _trials(name: str, journal: "optuna.Study", search: Search) -> Iterator[_Trial]:
    """Yield the trials of a method: finished ones, interrupted ones, then new ones."""
    import optuna

    states = optuna.trial.TrialState
    finished = journal.get_trials(deepcopy=False, states=[states.COMPLETE])
    yield from ((name, trial.number, trial.params) for trial in finished)
    interrupted = journal.get_trials(deepcopy=False, states=[states.RUNNING])
    # The number is private: Optuna has no public way to go on with a trial.
    resumed = (optuna.trial.Trial(journal, trial._trial_id) for trial in interrupted)
    waiting = len(journal.get_trials(deepcopy=False, states=[states.WAITING]))
    known = len(journal.get_trials(deepcopy=False))
    # A search that goes on in another process must not draw the first settings again.
    journal.sampler = optuna.samplers.TPESampler(seed=known)
    count = waiting or min(search.count - known, _AT_ONCE - len(interrupted))
    new = (journal.ask() for _ in range(count))
    for trial in itertools.chain(resumed, new):  # a resumed one keeps the settings that it has
        settings = {
            key: trial.suggest_float(key, *values, log=True)
            if isinstance(values, Range)
            else trial.suggest_categorical(key, list(values))
            for key, values in search.space.items()
        }
        yield name, trial.number, settings


def _planned(trial: _Trial, base: Mapping[str, Any], search: Search, folder: Path) -> Planned:
    """Return the run of a trial."""
    name, number, settings = trial
    table = _tuned({**base, "methods": {name: base["methods"][name]}}, name, settings)
    changes = {
        "seed": FIRST_SEED,
        "replicas": search.replicas,
        "stream": {"tasks": search.tasks},
        "evaluation": {"held_out": HELD_OUT},
    }
    label = f"{name.replace(':', '.')}-{number}"
    return Planned(Spec.parse(spec.with_changes(table, changes)), folder / label, label)


def _score(errors: Errors) -> _Score:
    """Return the score of a trial."""
    means = float(cme(errors).mean()), float(nte(errors).mean())
    return _Score(*(round(mean, 9) if math.isfinite(mean) else math.inf for mean in means))


def _tuned(table: Mapping[str, Any], method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with settings of one method; those of [training] become the method's own."""
    for key, value in settings.items():
        section, _, rest = key.partition(".")
        name = f'methods."{method}".{rest}' if section == "training" else key
        table = spec.with_changes(table, spec.nested_entry(name, value))
    return dict(table)
