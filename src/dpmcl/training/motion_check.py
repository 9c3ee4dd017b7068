"""Check that a stream can supply dx in the form that a method, optimiser or monitor needs."""

from collections.abc import Sequence

from dpmcl.data.stream import Stream
from dpmcl.exceptions import SpecError
from dpmcl.methods._method import Method, Phase
from dpmcl.optimisers.theorem import Theorem


def check_motion(method: Method, stream: Stream, phases: Sequence[Phase], watched: str) -> None:
    """Check that a stream can supply dx in the form that a method, optimiser or monitor needs.

    Args:
        method: The method with its optimiser.
        stream: The stream.
        phases: The method's phases of the first task.
        watched: How the monitor finds dx (`monitor.drift`).

    Raises:
        SpecError: The stream does not know its dynamics ("exact"), or has classes ("estimated").
    """
    asks = {"monitor.drift": watched}
    if isinstance(method.rule, Theorem):
        asks["optimiser.drift"] = method.rule.drift
    for phase in phases:
        for name, draw in phase.draws.items():
            setting = hasattr(method, "fourth_term")
            asks["fourth_term" if setting else f"draw '{name}', moved"] = draw.moved or ""
    for name, how in asks.items():
        if how == "exact" and stream.following is None:
            raise SpecError(
                f"{name} = 'exact' needs a stream that knows its dynamics (one of an equation, as "
                f"lorenz), got '{stream.name}'; leave it out, or estimate."
            )
        if how == "estimated" and stream.kind != "regression":
            raise SpecError(
                f"{name} = 'estimated' moves inputs and targets of a regression, got the classes "
                f"of '{stream.name}'; use 'off'."
            )
