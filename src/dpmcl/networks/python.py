"""The network made of a user's modules, which are in memory."""

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import nn

from dpmcl.core import fingerprint
from dpmcl.core.network_check import check_layers
from dpmcl.core.network_layers import settings_of
from dpmcl.exceptions import ModelError, reason
from dpmcl.networks._network import NetworkSettings
from dpmcl.networks._own import freeze, members_of, split_in_two, with_outputs


@dataclass(frozen=True, kw_only=True)
class Python(NetworkSettings):
    """Modules created in Python and passed to the package; a spec alone cannot create them again.

    One module is split before its last linear layer, or before a named layer; two modules are the
    representation and the prediction. For every seed the weights are those of the modules, except
    in a last linear layer of another width, which is replaced by a new one. A function of (shape,
    outputs) is called for each seed.

    Attributes:
        before: Name of the layer before which one module is split; None for its last linear layer.
        frozen: Names of layers that are frozen: their parameters and running statistics do not
            change, and they stay in evaluation mode.
        digest: Fingerprint of the modules, so that a run folder is extended only with the same.
    """

    before: str | None = None
    frozen: tuple[str, ...] = ()
    digest: str = ""
    modules: Any = field(init=False, repr=False, compare=False, default=None)

    def holding(self, modules: Any) -> Self:
        """Return a copy of the settings that holds modules.

        Args:
            modules: A tuple of one module or two, or a function of (shape, outputs) that returns
                one module or two.
        """
        settings = replace(self)
        object.__setattr__(settings, "modules", modules)
        return settings

    def build(self, shape: Sequence[int], outputs: int) -> tuple[nn.Module, nn.Module]:
        if self.modules is None:
            raise ModelError(
                "This spec's network was made in Python, and a spec cannot make it again; call "
                "dpmcl.run(..., network=...) with it."
            )
        modules = self.modules
        modules = modules(tuple(shape), outputs) if is_factory(modules) else modules
        members = copy.deepcopy(members_of(modules))
        if self.frozen:
            freeze(members, self.frozen)
        pair = split_in_two(members, self.before, tuple(shape))
        return with_outputs(pair, outputs, tuple(shape))


def is_factory(modules: Any) -> bool:
    """Return True if an object is a function that builds modules.

    Args:
        modules: Object of any type.
    """
    return isinstance(modules, Callable) and not isinstance(modules, nn.Module)  # type: ignore[arg-type]


def own_network(
    modules: Any, *, before: str | None = None, frozen: Sequence[str] | str = ()
) -> Python:
    """Return the network settings of a user's modules.

    Args:
        modules: One module, two, or a function of (shape, outputs) that returns either.
        before: Name of the layer before which one module is split; None for its last linear layer.
        frozen: Name or names of layers to freeze.

    Raises:
        ModelError: `modules` is none of these, or a run cannot use or copy a layer.
    """
    if not is_factory(modules):
        modules = members_of(modules)
        check_layers(modules)
    names = (frozen,) if isinstance(frozen, str) else tuple(frozen)
    try:
        copy.deepcopy(modules)
        digest = _digest(modules)
    except Exception as error:  # cloudpickle, and objects of the user's, raise errors of many types
        raise ModelError(
            f"A network is copied, and this one cannot be: {reason(error)}; leave out locks, "
            "files, generators, compiled functions and results of earlier passes."
        ) from error
    return Python(before=before, frozen=names, digest=digest).holding(modules)


def _digest(modules: Any) -> str:
    """Return a fingerprint of a function's code, or of the layers and values of modules."""
    out = hashlib.sha256()
    if is_factory(modules):
        fingerprint.add_object(out, modules)
        return out.hexdigest()[:32]
    for module in modules:
        out.update(repr(module).encode())
        for name, value in {**module.state_dict(), **dict(module.named_buffers())}.items():
            out.update(name.encode())
            fingerprint.add(out, value)
        for layer in module.modules():
            for name, value in settings_of(layer).items():
                out.update(name.encode())
                if isinstance(value, torch.Tensor):
                    fingerprint.add(out, value)
                elif isinstance(value, bool | int | float | str):
                    out.update(repr(value).encode())
                elif not isinstance(value, torch.fx.Graph):  # whose code is an attribute too
                    fingerprint.add_object(out, value)
    return out.hexdigest()[:32]


plugin = Python
