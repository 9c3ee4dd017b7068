"""A model: a representation h(x; theta_1), a prediction g(.; theta_2), and the cost of a row.

Any `torch.nn.Module`s, used as pure functions of their parameters. `theta` is a dict of parts,
{"representation": theta_1, "prediction": theta_2}, each a dict of tensors by parameter name.

At the door (`Model.build`) a module is copied, its dropout replaced by a keyed one, for a GPU its
convolutions by those of `dpmcl.core.convolution`, and checked (`dpmcl.core.network_check`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpmcl.core import keys
from dpmcl.core.batch import Batch, weighted_mean
from dpmcl.core.convolution import Convolutions, preferred
from dpmcl.core.generators import forked
from dpmcl.core.gradients import count_rows
from dpmcl.core.network_check import check
from dpmcl.core.part import PARTS, Modules, Network, Part, modules_of, part_of
from dpmcl.core.part import Parameters as Parameters
from dpmcl.core.part import Theta as Theta
from dpmcl.core.precision import Precision, products
from dpmcl.core.tree import stack

Gate = Literal["features", "outputs"]
Kind = Literal["classification", "regression"]


@dataclass(frozen=True)
class Model:
    """h, g and the cost, as pure functions for one replica.

    kind: "classification" (cross entropy on logits) or "regression" (mean squared error).
    convolutions, precision: how h and g are computed (`core.convolution`, `core.precision`).
    """

    network: Network
    kind: Kind
    parts: dict[str, Part]
    dtype: torch.dtype
    device: torch.device
    gate: Gate | None = None
    convolutions: Convolutions = "native"
    precision: Precision | None = None

    @classmethod
    def build(
        cls,
        network: Network,
        kind: Kind,
        example: Tensor,
        outputs: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        *,
        convolutions: Convolutions | None = None,
        precision: Precision | None = None,
    ) -> "Model":
        """A checked model.

        network: makes (representation, prediction) with new initial weights at each call.
        example: inputs (n, ...) as the stream delivers them. outputs: width of g's output.
        convolutions: "patches" replaces plain nn.Conv2d layers by equal ones whose weight gradient
        is a product of matrices, "native" keeps them; None is "patches" on a GPU and "native" on a
        CPU. precision: of products in h and g.
        Raises ModelError for a module that cannot be used, with the way out.
        """
        device = device or example.device
        convolutions = convolutions or preferred(device)

        def made(modules: Modules) -> dict[str, Part]:
            lanes = iter(range(1 << 20))
            return {
                name: part_of(module, lanes, convolutions, dtype, device)
                for name, module in zip(PARTS, modules, strict=True)
            }

        parts = check(network, made, example.to(device=device, dtype=dtype), outputs)
        return cls(
            network,
            kind,
            parts,
            dtype,
            device,
            convolutions=convolutions,
            precision=precision,
        )

    def init(self, seed: int) -> Theta:
        """Initial weights of one replica: the network's own, drawn under a generator of its own."""
        key = keys.derive(seed, keys.Purpose.WEIGHTS)
        with forked(int((key[0] << 31) | (key[1] >> 1))):
            modules = dict(zip(PARTS, modules_of(self.network), strict=True))
            if self.gate:
                modules["gate"] = _gate_module(self.network, self.gate)
        return {
            name: {
                k: p.detach().to(device=self.device, dtype=self.dtype, copy=True)
                for k, p in module.named_parameters()
            }
            for name, module in modules.items()
        }

    def gated(self, gate: Gate) -> "Model":
        """The same model with a second network, part "gate" of theta, that multiplies the first.

        gate: "features", a network of h's shape whose sigmoid multiplies h's features; "outputs",
        one of the shape of g(h(.)) whose outputs multiply the model's. The other parts start from
        the same weights as without a gate.
        """
        lanes = iter(range(1 << 20, 1 << 21))
        with forked(0):
            module = _gate_module(self.network, gate)
        part = part_of(module, lanes, self.convolutions, self.dtype, self.device)
        return replace(self, parts={**self.parts, "gate": part}, gate=gate)

    def features(self, theta_1: Parameters, x: Tensor, key: Tensor | None = None) -> Tensor:
        """h(x; theta_1): features (n, ...). key None: evaluation, without dropout."""
        return self._apply("representation", theta_1, x, key)

    def outputs(self, theta_2: Parameters, features: Tensor, key: Tensor | None = None) -> Tensor:
        """g(features; theta_2): logits (n, classes), or values (n, outputs)."""
        return self._apply("prediction", theta_2, features, key)

    def predict(self, theta: Theta, x: Tensor, key: Tensor | None = None) -> Tensor:
        """g(h(x; theta_1); theta_2); gated, if the model has a gate."""
        return self.answer(theta, self.seen(theta, x, key), x, key)

    def seen(self, theta: Theta, x: Tensor, key: Tensor | None = None) -> Tensor:
        """What g sees of x: h(x; theta_1), multiplied by a gate of features if there is one."""
        features = self.features(theta["representation"], x, key)
        if self.gate != "features":
            return features
        return features * torch.sigmoid(self._apply("gate", theta["gate"], x, key))

    def answer(self, theta: Theta, seen: Tensor, x: Tensor, key: Tensor | None = None) -> Tensor:
        """g of what it sees, multiplied by a gate of outputs if there is one."""
        outputs = self.outputs(theta["prediction"], seen, key)
        if self.gate != "outputs":
            return outputs
        return outputs * self._apply("gate", theta["gate"], x, key)

    def _apply(self, part: str, parameters: Parameters, x: Tensor, key: Tensor | None) -> Tensor:
        with products(self.precision, self.device):
            out = self.parts[part].apply(parameters, x, key)
        return out.to(self.dtype) if out.dtype == torch.bfloat16 else out

    def cost(self, theta: Theta, batch: Batch, key: Tensor | None = None) -> Tensor:
        """J: the weighted mean of the losses of a batch, 0 for a batch without rows; a scalar.

        J_N, J_P and J_PN of the paper are this cost on b_N, b_P and b_PN.
        """
        return weighted_mean(self.losses(self.predict(theta, batch.x, key), batch.y), batch.w)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The cost of each row (n,): cross entropy on logits, or squared error's mean."""
        count_rows(outputs.shape[0])
        if self.kind == "classification":
            return functional.cross_entropy(outputs, y, reduction="none")
        return (outputs - y).square().flatten(1).mean(1)

    def errors(self, outputs: Tensor, y: Tensor, within: Tensor | None = None) -> Tensor:
        """The error of each row (n,), float64: 0 or 1 for a class, the mean squared error else.

        within: bool (n, classes), the classes that the answer is looked for in; None for all.
        Outputs that are not finite are wrong, whatever an argmax would make of them.
        """
        if self.kind == "classification":
            finite = outputs.isfinite().all(-1)
            if within is not None:
                outputs = torch.where(within, outputs, -torch.inf)
            right = (outputs.argmax(-1) == y) & finite
            return 1.0 - right.to(torch.float64)
        return (outputs.to(torch.float64) - y).square().flatten(1).mean(1)


def initial(model: Model, seeds: Sequence[int]) -> Theta:
    """Initial weights of many replicas, stacked: leaf (replicas, ...)."""
    theta: Theta = stack([model.init(seed) for seed in seeds])
    return theta


def _gate_module(network: Network, gate: Gate) -> nn.Module:
    modules = modules_of(network)
    return modules[0] if gate == "features" else nn.Sequential(*modules)


def has_convolution(model: Model) -> bool:
    """Whether any layer is a convolution: under vmap on a CPU they become slow grouped ones."""
    convolutions: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.modules.conv._ConvTransposeNd)
    return any(
        isinstance(layer, convolutions)
        for part in model.parts.values()
        for layer in part.training.modules()
    )
