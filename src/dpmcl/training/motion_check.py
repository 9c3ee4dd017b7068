"""Whether the stream can tell what a method, its optimiser or a monitor wants to know of dx."""

from dpmcl.core.model import Model
from dpmcl.core.optim import Theorem
from dpmcl.data.stream import Stream
from dpmcl.exceptions import SpecError
from dpmcl.methods._method import Method


def check_motion(method: Method, model: Model, stream: Stream, watched: str) -> None:
    """Raises SpecError where it cannot. watched: how the monitor is to know dx."""
    asks = {"monitor.drift": watched}
    if isinstance(method.rule, Theorem):
        asks["optimiser.drift"] = method.rule.drift
    for phase in method.phases(model, 0):
        for name, draw in phase.draws.items():
            own = hasattr(method, "fourth_term")
            asks["fourth_term" if own else f"draw '{name}', moved"] = draw.moved or ""
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
