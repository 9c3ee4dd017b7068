"""Check that a stream can supply dx in the form that a method, optimiser or monitor needs."""

from collections.abc import Sequence

from dpmcl.data.stream import Stream
from dpmcl.exceptions import SpecError
from dpmcl.methods._method import Method, Phase
from dpmcl.optimisers.theorem import Theorem


def check_motion(
    method: Method, stream: Stream, phases: Sequence[Phase], monitor_drift: str
) -> None:
    """Check that a stream can supply dx in the form that a method, optimiser or monitor needs.

    Args:
        method: The method with its optimiser.
        stream: The stream.
        phases: The method's phases of the first task.
        monitor_drift: How the monitor finds dx (`monitor.drift`).

    Raises:
        SpecError: The stream does not know its dynamics ("exact"), or has classes ("estimated").
    """
    requests = {"monitor.drift": monitor_drift}
    if isinstance(method.rule, Theorem):
        requests["optimiser.drift"] = method.rule.drift
    for phase in phases:
        for name, draw in phase.draws.items():
            setting = hasattr(method, "fourth_term")
            requests["fourth_term" if setting else f"draw '{name}', moved"] = draw.moved or ""
    for name, how in requests.items():
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
