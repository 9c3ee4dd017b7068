"""Arguments of a learner: checked once, and fixed for all of its chunks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import annotated_types as at
import pydantic
import torch

from dpmcl import plugins
from dpmcl.core.choices import DeviceName, EngineName
from dpmcl.core.model import Kind
from dpmcl.core.settings import NonNegative, Positive, Settings, Share
from dpmcl.exceptions import SpecError, shown
from dpmcl.learner.labels import LabelMap
from dpmcl.learner.network import Network
from dpmcl.methods._method import Method


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Arguments of a learner.

    Attributes:
        method: The method. Its `memory` is the capacity of the learner's memory.
        network: Builds the network for the shapes of the first chunk.
        labels: The classes that were declared; empty if none were.
        seed, replicas, kind, scale, validation, holdout: As for `Learner`.
        forgetting_limit, monitor, dtype, device, engine: As for `Learner`.

    Raises:
        SpecError: A value is invalid, or contradicts another.
    """

    method: Method
    network: Network
    labels: LabelMap = field(default_factory=LabelMap)
    seed: NonNegative = 0
    replicas: Positive = 1
    kind: Kind | None = None
    scale: pydantic.StrictBool | None = None
    validation: Annotated[float, at.Gt(0), at.Lt(1)] | None = None
    holdout: Share = 0.0
    forgetting_limit: Annotated[float, at.Ge(0)] | None = None
    monitor: Literal["stability"] | None = None
    dtype: Literal["float32", "float64"] = "float32"
    device: DeviceName = "auto"
    engine: EngineName = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seed + self.replicas > 2**63:
            raise SpecError(f"Seeds must stay below 2^63, got {self.replicas} from {self.seed}.")
        if self.validation is not None and not self.method.trains_on_validation:
            raise SpecError(
                "validation is for methods that train on validation rows; leave it out."
            )
        for name in ("forgetting_limit", "monitor"):
            if getattr(self, name) is not None and not self.holdout:
                raise SpecError(
                    f"{name} needs rows that are held out, as the report does; set a share of "
                    "them, as in holdout=0.1."
                )

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the seed of each replica."""
        return tuple(range(self.seed, self.seed + self.replicas))

    @property
    def floats(self) -> torch.dtype:
        """Return the dtype of the parameters."""
        floats: torch.dtype = getattr(torch, self.dtype)
        return floats

    @property
    def title(self) -> str:
        """Return the names of the method and the network, as in "replay, mlp"."""
        method = type(self.method)
        return f"{plugins.name_of('method', method) or method.__name__}, {self.network.name}"


def method_of(method: Any, settings: Mapping[str, Any]) -> Method:
    """Return a method with the given settings.

    Args:
        method: Name of a method, a `dpmcl.Method` or a subclass of it.
        settings: Settings by name. They replace those of a `dpmcl.Method`.

    Raises:
        SpecError: `method` is none of these, or a setting is invalid.
    """
    if isinstance(method, Method):
        method, settings = type(method), {**method.to_table(), **settings}
    if isinstance(method, type) and issubclass(method, Method):
        return method.from_table(settings, f"Method {method.__name__}:")
    if not isinstance(method, str):
        raise SpecError(
            f"method must be a name, a dpmcl.Method or a subclass of it, got {shown(method)}."
        )
    named: Method = plugins.from_setting("method", method, **settings)
    return named
