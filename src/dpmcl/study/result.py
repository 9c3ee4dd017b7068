"""The results of a run: tables, figures, and learners that continue its training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from dpmcl.core.atomic import path_of
from dpmcl.core.choices import FigureContent, TableFormat
from dpmcl.core.errors import Errors
from dpmcl.core.model import Theta
from dpmcl.exceptions import DpmclError, SpecError, needed_for, shown, unknown
from dpmcl.results import comparison, errors_file, figures, store, summary, table, theory_figures
from dpmcl.results.confusion import confusions
from dpmcl.results.store import Stored
from dpmcl.study import identity
from dpmcl.theory.readings import Readings
from dpmcl.training.spec import Spec

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from dpmcl.learner.learner import Learner


@dataclass(frozen=True, eq=False)
class Result(Stored):
    """The results of a run by method: those stored, and what only the present call knows.

    Attributes:
        theta: Final parameters of the methods trained in this call, with a leading replica
            dimension. Of a method that evaluates others (`Method.evaluated`) they are those that
            it trains.
        folder: The run folder, or None.
        made: The spec of this call; None for a loaded result.
        states: Last states of this call by method and seed; empty if there is a folder.
    """

    theta: Mapping[str, Theta] = field(default_factory=dict)
    folder: Path | None = None
    made: Spec | None = field(default=None, repr=False)
    states: Mapping[tuple[str, int], bytes] = field(default_factory=dict, repr=False)

    def learner(self, method: str, seed: int | None = None) -> "Learner":
        """Return a learner that continues from the last state of a replica.

        Memory, optimiser, scales, categories and labels are the replica's. The run's data are
        needed, to read the rows in memory again, only if the memory holds more than 4 MiB of them.

        Args:
            method: Name of the method in the spec.
            seed: Seed of the replica; None for the first one.

        Raises:
            SpecError: The run has no such replica, or a learner cannot continue from it.
            FolderError: The folder has no states, the code of the network has changed, or the data
                are needed and have changed.
        """
        from dpmcl.learner.from_run import learner_of_run  # not needed by runs

        if method not in self.records:
            raise unknown("method", method, self.records, f"It has {', '.join(self.records)}.")
        seeds = self.records[method].test.seeds
        seed = seeds[0] if seed is None else seed
        if seed not in seeds:
            raise SpecError(f"The run has the seeds {shown(list(seeds))}, got {shown(seed)}.")
        content = self.states.get((method, seed))
        if content is None:
            if self.folder is None:
                raise SpecError("This result has no states; run the spec into a folder.")
            content = store.load_state(self.folder, method, seed)
        spec = self.made or Spec.parse(self.spec)
        if self.made is None and self.folder is not None:
            identity.refuse_other_network(self.folder, self, spec, method)
        return learner_of_run(spec, method, seed, content=content, info=self.stream)

    @property
    def errors(self) -> dict[str, Errors]:
        """Errors on test rows by method: E[replica, after, task]."""
        return {name: record.test for name, record in self.records.items()}

    @property
    def readings(self) -> dict[str, Readings]:
        """Readings of the monitor by method; methods without readings are left out."""
        by_method = {name: record.readings for name, record in self.records.items()}
        return {name: readings for name, readings in by_method.items() if readings is not None}

    def rows(self, metrics: str | Sequence[str] = ()) -> list[dict[str, Any]]:
        """Return the rows of the table, one dict of numbers for each method.

        Args:
            metrics: Names of further metrics.

        Raises:
            SpecError: `metrics` are not names, or there is no metric of a name.
        """
        names = [metrics] if isinstance(metrics, str) else metrics
        if not isinstance(names, list | tuple):
            raise SpecError(f"metrics must be a list of names, got {shown(metrics)}.")
        return self._marked(summary.rows(self.records, self.stream, names))

    def rows_by_task(self) -> list[dict[str, Any]]:
        """Return a row for each method and task, with the task's error when new and at the end."""
        return self._marked(summary.rows_by_task(self.records, self.stream))

    def cost_rows(self) -> list[dict[str, Any]]:
        """Return a row for each method, with the cost of a replica's updates and what it stores."""
        return summary.cost_rows(self.records, self.stream)

    def _marked(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return rows with a column that is True if the method also trains on validation rows."""
        on_validation = {name: _trains_on_validation(self.spec, name) for name in self.records}
        return [{**row, "trains_on_validation": on_validation[row["method"]]} for row in rows]

    def table(self, style: TableFormat = "text") -> str:
        """Return the table in a text format.

        Args:
            style: "text", "json", "csv", "markdown" or "latex".
        """
        return table.render(self.rows(), style)

    def to_pandas(self) -> "pd.DataFrame":
        """Return the errors with columns method, seed, after, task, split, error and examples.

        `after` is the last task trained before the evaluation; -1 before the first task.

        Raises:
            DpmclError: pandas is not installed.
        """
        with needed_for("A DataFrame", "pandas"):
            return errors_file.table(self.records).to_pandas()

    def __repr__(self) -> str:
        replicas = max((len(record.test.seeds) for record in self.records.values()), default=0)
        methods = ", ".join(self.records)
        plural = "s" * (replicas != 1)
        return f"<Result of {methods} on {self.stream.name}, {replicas} replica{plural}>"

    def plot(
        self,
        path: str | Path | None = None,
        smooth: float = 0.0,
        what: FigureContent = "errors",
        **look: Any,
    ) -> "Figure":
        """Return a matplotlib figure, and write it to a file if `path` is not None.

        Args:
            path: File to write, or None.
            smooth: Standard deviation, in tasks, of the Gaussian smoothing; 0 for none.
            what: "errors" for CME and NTE against tasks, "terms" or "stability" for readings of the
                monitor, "confusion" for the confusion matrix.
            **look: Options of a figure of errors: `ylim`, `log`, `width` and `caption`
                (`figures.Look`). The default caption lists the settings.

        Raises:
            SpecError: There is no such figure, or it does not have one of the options.
        """
        if not (isinstance(what, str) and what in get_args(FigureContent)):
            raise SpecError(
                f"A figure shows errors, terms, stability or confusion, got {shown(what)}."
            )
        if what == "errors":
            options = {"caption": caption(self.spec), **look, "smooth": smooth}
            appearance = figures.Look.from_table(options, "A figure of errors:")
            figure = figures.curves(self.records, self.stream, appearance)
        elif smooth or look:
            given = ", ".join([*["smooth"] * bool(smooth), *look])
            raise SpecError(f"Only a figure of errors takes {given}; leave it out for {what}.")
        elif what == "confusion":
            figure = confusions(self.records, self.stream)
        else:
            figure = theory_figures.draw(self.readings, self.stream, what)
        if path is not None:
            figures.save(figure, path_of(path))
        return figure


def caption(spec: Mapping[str, Any]) -> str:
    """Return the settings of a spec that a figure's caption lists, as text.

    Args:
        spec: The table of a spec.
    """
    training, network = spec.get("training", {}), spec.get("network", {})
    options = [f"{key} {comparison.setting_text(network[key])}" for key in network if key != "name"]
    parts = [f"network {network.get('name', '')} ({', '.join(options)})"] if network else []
    names = ("optimiser", "lr", "batch", "updates", "passes", "memory")
    parts += [f"{k} {comparison.setting_text(training[k])}" for k in names if training.get(k)]
    for name, settings in spec.get("methods", {}).items():
        options = [
            f"{k} {comparison.setting_text(settings[k])}"
            for k in (*names, "zeta")
            if settings.get(k)
        ]
        parts += [f"{name}: {', '.join(options)}"] if options else []
    return "; ".join(parts)


def _trains_on_validation(spec: Mapping[str, Any], name: str) -> bool:
    try:
        parsed = Spec.parse({**spec, "methods": {name: spec["methods"][name]}})
    except (DpmclError, KeyError):  # the spec names a plugin that is no longer installed
        return False
    return bool(parsed.methods[name].trains_on_validation)


def load(folder: Path) -> Result:
    """Return the results in a run folder.

    Args:
        folder: A run folder.

    Raises:
        FolderError: The folder is not a run folder, or a file in it is damaged.
    """
    stored = store.load(folder)
    return Result(**vars(stored), folder=folder)
