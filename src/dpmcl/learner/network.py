"""The networks that a learner takes: a name, settings, or a function that builds one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from dpmcl import plugins
from dpmcl.exceptions import SpecError, shown
from dpmcl.networks._network import NetworkSettings

Build = Callable[[Sequence[int], int], tuple[nn.Module, nn.Module]]


@dataclass(frozen=True, eq=False)
class Network:
    """A network for whatever shapes the first chunk brings.

    Attributes:
        build: Returns (representation, prediction) for the shape of an input and a number of
            outputs, newly initialised.
        name: What a message calls it.
        table: Its settings and name, if it is one of the package; empty for a user's.
    """

    build: Build
    name: str
    table: Mapping[str, Any] = field(default_factory=dict)


def network_of(model: Any) -> Network:
    """Return the network that a user names, or brings.

    Args:
        model: None for "mlp", a network's name, a table of a name and settings, settings
            (`dpmcl.NetworkSettings`), or a function of (shape, outputs) that returns two modules.

    Raises:
        SpecError: It is none of these, or nothing has that name.
    """
    if isinstance(model, Network):
        return model
    if isinstance(model, Mapping | str) or model is None:
        setting = "mlp" if model is None else model
        name, _ = plugins.named("network", setting)
        settings = plugins.from_setting("network", setting)
        return Network(settings.build, name, {"name": name, **settings.to_table()})
    if isinstance(model, NetworkSettings):
        return Network(model.build, type(model).__name__)
    if callable(model) and not isinstance(model, type | nn.Module):
        return Network(model, getattr(model, "__name__", "a function"))
    raise SpecError(
        "A learner's model must be the name of a network, its settings, or a function of (shape, "
        f"outputs) that returns two modules, got {shown(model)}."
    )
