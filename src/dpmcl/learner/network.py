"""Networks of a learner, by name, from settings, or from a user's modules."""

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
    """A network that is built for the shapes of the first chunk.

    Attributes:
        build: Function of the shape of an input and the number of outputs that returns
            (representation, prediction), newly initialised.
        name: Name of the network in messages.
        table: Its name and settings if it is one of the package; empty for a user's network.
        frozen: Whether some of its layers are frozen.
    """

    build: Build
    name: str
    table: Mapping[str, Any] = field(default_factory=dict)
    frozen: bool = False


def network_of(model: Any, before: str | None = None, frozen: Sequence[str] = ()) -> Network:
    """Return the network that the argument `model` of a learner describes.

    Args:
        model: As for `Learner`.
        before: Name of the layer before which a single module is split.
        frozen: Names of layers of a user's modules that are frozen.

    Raises:
        SpecError: There is no network of that name, or `before` or `frozen` is set for a network
            of the package.
        ModelError: `model` is not a network.
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
        name, _ = plugins.name_and_options("network", setting)
        settings = plugins.from_setting("network", setting)
        return Network(settings.build, name, {"name": name, **settings.to_table()})
    name = getattr(model, "__name__", type(model).__name__)
    settings = model
    if not isinstance(model, NetworkSettings) or before is not None or len(frozen):
        settings = own_network(model, before=before, frozen=frozen)
    return Network(settings.build, name, frozen=len(frozen) > 0)
