"""Modules of your own, as they are in memory."""

import copy
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import cloudpickle
from torch import nn

from dpmcl.core import fingerprint
from dpmcl.core.network_check import check_layers
from dpmcl.exceptions import ModelError, shown
from dpmcl.networks._network import NetworkSettings
from dpmcl.networks._own import frozen, in_two, with_outputs


@dataclass(frozen=True, kw_only=True)
class Python(NetworkSettings):
    """Modules that were made in Python and handed over; a spec alone cannot make them again.

    One module is split before its last linear layer, or before the layer of a name; two are the
    representation and the prediction. Weights are those that the modules have, for every seed,
    but for a last linear layer of another width, which is made anew. A function of (shape,
    outputs) is called for each seed.

    Attributes:
        before: Name of the layer before which one module is split; None for its last linear layer.
        frozen: Names of layers whose parameters, running statistics and dropout stay as they are.
        digest: Fingerprint of the modules, so that a run folder is extended with the same alone.
    """

    before: str | None = None
    frozen: tuple[str, ...] = ()
    digest: str = ""
    modules: Any = field(init=False, repr=False, compare=False, default=None)

    def holding(self, modules: Any) -> Self:
        """Return the settings with modules in them.

        Args:
            modules: A module, two of them, or a function of (shape, outputs) that returns either.
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
        made = self.modules
        made = copy.deepcopy(made(tuple(shape), outputs) if is_factory(made) else made)
        pair = in_two(made, self.before, tuple(shape))
        return with_outputs(frozen(pair, made, self.frozen), outputs)


def is_factory(modules: Any) -> bool:
    """Return True for a function that builds modules.

    Args:
        modules: Anything.
    """
    return isinstance(modules, Callable) and not isinstance(modules, nn.Module)  # type: ignore[arg-type]


def own_network(
    modules: Any, *, before: str | None = None, frozen: Sequence[str] | str = ()
) -> Python:
    """Return the network of modules that a user has.

    Args:
        modules: A module, two of them, or a function of (shape, outputs) that returns either.
        before: Name of the layer before which one module is split.
        frozen: Names of layers that stay as they are.

    Raises:
        ModelError: They are no modules.
    """
    pair = isinstance(modules, tuple | list) and len(modules) == 2
    known = modules if pair else (modules,)
    if not is_factory(modules) and not all(isinstance(one, nn.Module) for one in known):
        raise ModelError(
            "A network of your own is a module, two modules (representation, prediction), or a "
            f"function of (shape, outputs) that returns either, got {shown(modules)}."
        )
    if not is_factory(modules):
        check_layers(known)
    names = (frozen,) if isinstance(frozen, str) else tuple(frozen)
    modules = tuple(modules) if pair else modules
    return Python(before=before, frozen=names, digest=_digest(modules)).holding(modules)


def _digest(modules: Any) -> str:
    """Return a fingerprint: of a function its code, of modules their layers and values."""
    out = hashlib.sha256()
    if is_factory(modules):
        out.update(cloudpickle.dumps(modules))
    for module in modules if isinstance(modules, tuple) else (modules,):
        if isinstance(module, nn.Module):
            out.update(repr(module).encode())
            for name, value in module.state_dict().items():
                out.update(name.encode())
                fingerprint.add(out, value)
            for part in module.modules():
                if type(part).__module__.partition(".")[0] != "torch":  # whose text has them
                    _add_attributes(out, part)
    return out.hexdigest()[:32]


def _add_attributes(out: Any, module: nn.Module) -> None:
    """Add what a module of the user's keeps beside parameters and layers, as a slope."""
    for name, value in vars(module).items():
        if not name.startswith("_") and name != "training":
            out.update(name.encode())
            plain = isinstance(value, bool | int | float | str)
            out.update(repr(value).encode() if plain else cloudpickle.dumps(value))


plugin = Python
