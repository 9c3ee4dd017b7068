"""The networks that a learner takes: a name, settings, or a function that builds one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from dpmcl import plugins
from dpmcl.exceptions import SpecError, shown
from dpmcl.networks._network import NetworkSettings
from dpmcl.networks.python import own_network

Build = Callable[[Sequence[int], int], tuple[nn.Module, nn.Module]]


@dataclass(frozen=True, eq=False)
class Network:
    """A network for whatever shapes the first chunk brings.

    Attributes:
        build: Returns (representation, prediction) for the shape of an input and a number of
            outputs, newly initialised.
        name: What a message calls it.
        table: Its settings and name, if it is one of the package; empty for a user's.
        frozen: Whether some of its layers stay as they are.
    """

    build: Build
    name: str
    table: Mapping[str, Any] = field(default_factory=dict)
    frozen: bool = False


def network_of(model: Any, before: str | None = None, frozen: Sequence[str] = ()) -> Network:
    """Return the network that a user names, or brings.

    Args:
        model: None for "mlp", a network's name, a table of a name and settings, settings
            (`dpmcl.NetworkSettings`), a module, two modules, or a function of (shape, outputs)
            that returns either.
        before: Name of the layer before which one module is split.
        frozen: Names of layers of modules that stay as they are.

    Raises:
        SpecError: Nothing has that name, or it is named and layers of it are too.
        ModelError: It is none of these.
    """
    if isinstance(model, Network):
        return model
    if isinstance(model, Mapping | str) or model is None:
        setting = "mlp" if model is None else model
        if before is not None or len(frozen):
            raise SpecError(
                "before and frozen are for modules of your own, and the model is "
                f"{shown(setting)}; leave them out, or give a module."
            )
        name, _ = plugins.named("network", setting)
        settings = plugins.from_setting("network", setting)
        return Network(settings.build, name, {"name": name, **settings.to_table()})
    name = getattr(model, "__name__", type(model).__name__)
    settings = model
    if not isinstance(model, NetworkSettings) or before is not None or len(frozen):
        settings = own_network(model, before=before, frozen=frozen)
    return Network(settings.build, name, frozen=len(frozen) > 0)
