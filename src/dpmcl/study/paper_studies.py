"""The runs of the paper's studies (Table 1, Figures 2 and 3), and of one on zeta."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpmcl import presets
from dpmcl.core.choices import Preset
from dpmcl.exceptions import SpecError, unknown
from dpmcl.results.paper import METHODS, STREAMS
from dpmcl.study.api import Request
from dpmcl.study.plan import Variant, variants, warn_of_overrides

ZETA, KAPPA = "methods.dpmcl.zeta", "methods.dpmcl.kappa"
"""The axes of Figure 3."""

_ZETAS = (0, 1, 2, 5, 10, 20)
_KAPPAS = (50, 100, 150, 200, 250, 300)
_FIXED = {ZETA: 2, KAPPA: 200}  # fixed value of each while Figure 3 varies the other


@dataclass(frozen=True, kw_only=True)
class Choice:
    """User's choices for a study; None leaves the study as it is.

    Attributes:
        streams: Names of streams.
        methods: Names of methods.
        replicas: Number of seeds of each method.
        tasks: Number of tasks, the streams' first ones.
        preset: "paper" for the learning rates printed in appendix B.3, or "calibrated" for rates
            with which the methods learn.
        changes: Further changes of the specs.
    """

    streams: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    replicas: int | None = None
    tasks: int | None = None
    preset: Preset = "calibrated"
    changes: Mapping[str, Any] | None = None

    def table(self, stream: str, methods: Sequence[str], replicas: int) -> dict[str, Any]:
        """Return the spec of a stream's preset with the choices applied.

        Args:
            stream: Name of the stream.
            methods: Methods of the study.
            replicas: Replicas of the study.

        Raises:
            SpecError: There is no preset for the stream.
        """
        name = f"paper-{stream}" if self.preset == "paper" else stream
        presets.text(name)  # refuses a stream without a preset
        request = Request(name).choose(self.methods or methods)
        request.update(replicas=self.replicas or replicas, tasks=self.tasks)
        warn_of_overrides(request.table, self.changes or {})
        return request.change(self.changes or {}).table


def table1(choice: Choice) -> list[Variant]:
    """Return the runs of Table 1 and Figure 2: six methods on four streams, fifty replicas.

    Args:
        choice: Choices for the study.
    """
    streams = dict.fromkeys(choice.streams or STREAMS)
    return [Variant(stream, choice.table(stream, METHODS, 50)) for stream in streams]


def figure3(choice: Choice) -> list[Variant]:
    """Return the runs of Figure 3: DPMCL on Omniglot against zeta (kappa 200) and kappa (zeta 2).

    Args:
        choice: Choices for the study.

    Raises:
        SpecError: Several streams are chosen.
    """
    table = choice.table(_only_stream(choice, "omniglot"), ("dpmcl",), 50)
    pairs = [{ZETA: zeta, KAPPA: _FIXED[KAPPA]} for zeta in _ZETAS]
    pairs += [{ZETA: _FIXED[ZETA], KAPPA: kappa} for kappa in _KAPPAS if kappa != _FIXED[KAPPA]]
    return [
        variant for pair in pairs for variant in variants(table, {k: [v] for k, v in pair.items()})
    ]


def zeta(choice: Choice) -> list[Variant]:
    """Return the runs that show the effect of DPMCL's third term, in all its forms and off.

    zeta {0, 1, 2, 5, 20} x third_term {constant, first, exact} x guard {none, clip} x two rates,
    third_term = "off" at both rates, and ER at both rates.

    Args:
        choice: Choices for the study.

    Raises:
        SpecError: Several streams are chosen.
    """
    table = choice.table(_only_stream(choice, "digits"), ("dpmcl", "er"), 20)
    # A method's own rate would not be varied.
    rates_of = [settings.pop("lr") for settings in table["methods"].values() if "lr" in settings]
    lr = (rates_of or [table.get("training", {}).get("lr", 1e-2)])[0]
    rates = {"training.lr": [lr, lr / 3]}
    term = "methods.dpmcl.third_term"
    axes: dict[str, list[Any]] = {
        ZETA: [0, 1, 2, 5, 20],
        term: ["constant", "first", "exact"],
        "methods.dpmcl.guard": ["none", "clip"],
        **rates,
    }
    alone = {"dpmcl": table["methods"].get("dpmcl", {})}
    return variants(table, axes) + variants({**table, "methods": alone}, {term: ["off"], **rates})


STUDIES: Mapping[str, Callable[[Choice], list[Variant]]] = {
    "table1": table1,
    "figure2": table1,
    "figure3": figure3,
    "zeta": zeta,
}
"""The studies by name."""


def runs(name: str, choice: Choice) -> list[Variant]:
    """Return the runs of a study.

    Args:
        name: One of `STUDIES`.
        choice: Choices for the study.

    Raises:
        SpecError: There is no such study, or it does not allow the choices.
    """
    if name not in STUDIES:
        known = ", ".join(STUDIES)
        raise unknown("study", name, list(STUDIES), f"Studies: {known}, or a TOML file.")
    return STUDIES[name](choice)


def _only_stream(choice: Choice, default: str) -> str:
    """Return the stream of a study that has exactly one."""
    streams = choice.streams or [default]
    if len(streams) != 1:
        raise SpecError(f"This study is of one stream, got {', '.join(streams)}; name one.")
    return streams[0]
