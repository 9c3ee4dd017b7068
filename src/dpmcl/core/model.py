"""A model: a representation h(x; theta_1), a prediction g(.; theta_2), and the cost of a row.

h and g can be any `torch.nn.Module`s; they are used as pure functions of their parameters. `theta`
is a dict of parts, {"representation": theta_1, "prediction": theta_2}, each a dict of tensors by
parameter name.

`Model.build` copies both modules, replaces dropout by one whose masks follow from a key, BatchNorm
by one that leaves absent rows out, and on a GPU convolutions by those of `dpmcl.core.convolution`.
It then checks the network (`dpmcl.core.network_check`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpmcl.core import keys
from dpmcl.core.batch import Batch, weighted_mean
from dpmcl.core.convolution import Convolutions
from dpmcl.core.cost import RowCost
from dpmcl.core.generators import forked
from dpmcl.core.gradients import count_rows
from dpmcl.core.network_check import check
from dpmcl.core.part import (
    PARTS,
    Modules,
    Network,
    Part,
    modules_of,
    part_of,
    trainable,
    with_seeded_draws,
)
from dpmcl.core.part import Buffers as Buffers
from dpmcl.core.part import Parameters as Parameters
from dpmcl.core.part import Theta as Theta
from dpmcl.core.precision import Precision, product_context
from dpmcl.core.tree import stack
from dpmcl.exceptions import ModelError

Gate = Literal["features", "outputs"]
Kind = Literal["classification", "regression"]

_ABSENT = -1e30
"""Logit of an absent class: its softmax is 0, and all derivatives stay finite."""


@dataclass(frozen=True)
class Model:
    """h, g and the cost, as pure functions of one replica; `Model.build` creates one.

    Attributes:
        network: Builds (representation, prediction) with new initial weights at each call.
        kind: "classification" (cross entropy on logits) or "regression" (mean squared error).
        parts: The two modules, and the gate if the model has one, as functions.
        dtype: Type of parameters, features, outputs and losses.
        device: Device of parameters, features, outputs and losses.
        gate: What the gate, a third network, multiplies (`gated`); None for a model without one.
        convolutions, precision: How h and g are computed (`core.convolution`, `core.precision`).
        buffers: Running statistics that evaluation uses (`holding`), or None.
        present: Mask of the outputs that stand for a class, bool (outputs,); None for all. The
            others are reserved for future classes, and costs and predictions ignore them.
        classes: Number of classes, which are the first outputs; None if `present` is None.
        row_cost: Cost of a row that replaces the cost of `kind` (`core.cost`), or None.
    """

    network: Network
    kind: Kind
    parts: dict[str, Part]
    dtype: torch.dtype
    device: torch.device
    gate: Gate | None = None
    convolutions: Convolutions = "native"
    precision: Precision | None = None
    buffers: Buffers | None = None
    present: Tensor | None = None
    classes: int | None = None
    row_cost: RowCost | None = None

    @classmethod
    def build(
        cls,
        network: Network,
        kind: Kind,
        example: Tensor,
        outputs: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
        images: bool = False,
        convolutions: Convolutions | None = None,
        precision: Precision | None = None,
    ) -> "Model":
        """Build a model, check that a run can use its network, and return it.

        Args:
            network: Builds (representation, prediction) with new initial weights at each call.
            kind: "classification" or "regression".
            example: Inputs (n, ...) as the stream delivers them.
            outputs: Width of g's output.
            dtype: Type of parameters and results.
            device: Device of parameters and results; None for the example's.
            images: Whether inputs are stored as uint8, which stands for x / 255.
            convolutions: "patches" replaces plain nn.Conv2d layers by equivalent ones whose weight
                gradient is a matrix product, "native" keeps them; None is "patches" on a GPU and
                "native" on a CPU.
            precision: Precision of matrix products and convolutions in h and g (`core.precision`).

        Raises:
            ModelError: A run cannot use the network.
        """
        device = device or example.device
        if convolutions is None:  # on a CPU PyTorch's own weight gradient is faster
            convolutions = "patches" if device.type == "cuda" else "native"

        def parts_from(modules: Modules) -> dict[str, Part]:
            lanes = iter(range(1 << 20))
            return {
                name: part_of(module, lanes, convolutions=convolutions, dtype=dtype, device=device)
                for name, module in zip(PARTS, modules, strict=True)
            }

        example = example.to(device=device, dtype=dtype)
        parts = check(network, parts_from, example, outputs, images=images)
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
        """Return the initial weights of one replica, as the network draws them under a seed.

        Frozen parameters (requires_grad=False) are constants of the parts and not in theta.

        Args:
            seed: Seed of the replica.
        """
        key = keys.derive(seed, keys.Purpose.WEIGHTS)
        with forked(keys.as_seed(key)):
            modules = dict(zip(PARTS, modules_of(self.network), strict=True))
            if self.gate:
                modules["gate"] = _gate_module(self.network, self.gate)
        return {
            name: {
                k: p.detach().to(device=self.device, dtype=self.dtype, copy=True)
                for k, p in trainable(module).items()
            }
            for name, module in modules.items()
        }

    def init_buffers(self) -> Buffers:
        """Return the initial running statistics, the same for all replicas.

        Returns:
            Part -> name -> tensor, only for parts with BatchNorm layers; {} if there are none.
        """
        return {
            name: {k: buffer.clone() for k, buffer in part.statistics.items()}
            for name, part in self.parts.items()
            if part.statistics
        }

    def holding(self, buffers: Buffers) -> "Model":
        """Return a copy of the model whose evaluation (key None) uses these running statistics.

        Args:
            buffers: Statistics of one replica, as `init_buffers` or `moved` returns them.
        """
        return replace(self, buffers=buffers)

    def with_room(self, classes: int, outputs: int) -> "Model":
        """Return a copy of the model in which only the first outputs stand for classes.

        Args:
            classes: Number of classes.
            outputs: Width of the network's output.
        """
        present = torch.arange(outputs, device=self.device) < classes
        return replace(self, present=present, classes=classes)

    def moved(self, theta: Theta, x: Tensor, w: Tensor, key: Tensor) -> Buffers:
        """Return the running statistics after one training pass from those that the model holds.

        PyTorch's rule updates them (momentum, unbiased variance). Rows of weight 0 do not count,
        and the statistics stay as they are if no row is present.

        Args:
            theta: Parameters of one replica.
            x: Inputs (n, ...).
            w: Weights of the rows (n,).
            key: Key of the random draws of the pass (dropout).

        Raises:
            ModelError: The network has running statistics, and the model holds none.
        """
        after: Buffers = {}

        def run(part: str, x: Tensor) -> Tensor:
            statistics = self._statistics(part)
            out, after[part] = self._run(part, theta[part], x, key, w=w, statistics=statistics)
            return out

        if not any(part.statistics for part in self.parts.values()):
            return {}
        features = run("representation", x)
        if self.gate:
            gate = run("gate", x)
            features = features * torch.sigmoid(gate) if self.gate == "features" else features
        if self.parts["prediction"].statistics:
            run("prediction", features)
        return {part: statistics for part, statistics in after.items() if statistics}

    def gated(self, gate: Gate) -> "Model":
        """Return a copy of the model with a gate, a network that multiplies features or outputs.

        Its parameters are the part "gate" of theta. The other parts start from the same weights as
        without a gate.

        Args:
            gate: "features" for a network like h, whose sigmoid multiplies h's features; "outputs"
                for one like g(h(.)), whose outputs multiply the model's.
        """
        lanes = iter(range(1 << 20, 1 << 21))
        with forked(0):
            module = _gate_module(self.network, gate)
        part = part_of(
            module, lanes, convolutions=self.convolutions, dtype=self.dtype, device=self.device
        )
        parts = {**self.parts, "gate": part}
        return replace(
            self, parts=with_seeded_draws(parts, parts["representation"].draws), gate=gate
        )

    def features(
        self, theta_1: Parameters, x: Tensor, key: Tensor | None = None, *, w: Tensor | None = None
    ) -> Tensor:
        """Return h(x; theta_1), the features (n, ...).

        Args:
            theta_1: Parameters of the representation.
            x: Inputs (n, ...).
            key: Key of the random draws of training (dropout); None for evaluation.
            w: Weights of the rows (n,); None if all rows are present. BatchNorm in training leaves
                out rows of weight 0.
        """
        return self._apply("representation", theta_1, x, key, w=w)

    def outputs(
        self,
        theta_2: Parameters,
        features: Tensor,
        key: Tensor | None = None,
        *,
        w: Tensor | None = None,
    ) -> Tensor:
        """Return g(features; theta_2): logits (n, classes), or values (n, outputs).

        Args:
            theta_2: Parameters of the prediction.
            features: Features (n, ...), as `features` returns them.
            key, w: As for `features`.
        """
        return self._apply("prediction", theta_2, features, key, w=w)

    def predict(
        self, theta: Theta, x: Tensor, key: Tensor | None = None, *, w: Tensor | None = None
    ) -> Tensor:
        """Return the model's outputs g(h(x; theta_1); theta_2), gated if the model has a gate.

        Args:
            theta: Parameters by part.
            x: Inputs (n, ...).
            key, w: As for `features`.
        """
        return self.answer(theta, self.seen(theta, x, key, w=w), x, key, w=w)

    def seen(
        self, theta: Theta, x: Tensor, key: Tensor | None = None, *, w: Tensor | None = None
    ) -> Tensor:
        """Return the input of g for x: the features, multiplied by the gate if it gates features.

        Args:
            theta: Parameters by part.
            x: Inputs (n, ...).
            key, w: As for `features`.
        """
        features = self.features(theta["representation"], x, key, w=w)
        if self.gate != "features":
            return features
        return features * torch.sigmoid(self._apply("gate", theta["gate"], x, key, w=w))

    def answer(
        self,
        theta: Theta,
        seen: Tensor,
        x: Tensor,
        key: Tensor | None = None,
        *,
        w: Tensor | None = None,
    ) -> Tensor:
        """Return the model's outputs from the input of g.

        They are g(seen), multiplied by the gate if it gates outputs.

        Args:
            theta: Parameters by part.
            seen: Input of g (n, ...), as `seen` returns it.
            x: Inputs (n, ...), which the gate takes.
            key, w: As for `features`.
        """
        outputs = self.outputs(theta["prediction"], seen, key, w=w)
        if self.gate != "outputs":
            return outputs
        return outputs * self._apply("gate", theta["gate"], x, key, w=w)

    def _statistics(self, part: str) -> Parameters:
        """Return the running statistics that the model holds for a part, {} if it needs none."""
        if not self.parts[part].statistics:
            return {}
        if self.buffers is None or part not in self.buffers:
            raise ModelError(
                f"The running statistics of the {part} are needed here, and the model holds none; "
                "use model.holding(buffers), with the `buffers` of a State or of "
                "model.init_buffers()."
            )
        return self.buffers[part]

    def _apply(
        self, part: str, parameters: Parameters, x: Tensor, key: Tensor | None, *, w: Tensor | None
    ) -> Tensor:
        """Return the output of a part, and count its rows (`core.gradients.counting`)."""
        statistics = self._statistics(part) if key is None else {}
        out, _ = self._run(part, parameters, x, key, w=w, statistics=statistics)
        if part != "gate":
            count_rows(part, out)
        return out

    def _run(
        self, part: str, parameters: Parameters, x: Tensor, key: Tensor | None, **arguments: Any
    ) -> tuple[Tensor, Parameters]:
        """Return the result of `Part.apply`, computed in the model's precision, in its type."""
        with product_context(self.precision, self.device):
            out, statistics = self.parts[part].apply(parameters, x, key, **arguments)
        return (out.to(self.dtype) if out.dtype == torch.bfloat16 else out), statistics

    def cost(self, theta: Theta, batch: Batch, key: Tensor | None = None) -> Tensor:
        """Return J, the weighted mean of the losses of a batch; 0 if no row is present.

        J_N, J_P and J_PN of the paper are this cost on b_N, b_P and b_PN.

        Args:
            theta: Parameters by part.
            batch: Rows of one replica.
            key: Key of the random draws of training (dropout); None for evaluation.
        """
        outputs = self.predict(theta, batch.x, key, w=batch.w)
        return weighted_mean(self.losses(outputs, batch.y), batch.w)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the cost of each row (n,), by `row_cost` or else by the cost of `kind`.

        Args:
            outputs: Outputs (n, outputs), as `predict` returns them.
            y: Targets, int64 (n,) or (n, outputs).
        """
        if self.row_cost is None:
            return self.usual_losses(outputs, y)
        return self.row_cost(self.of_classes(outputs), y)

    def usual_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the cost of `kind` of each row (n,): cross entropy, or mean squared error.

        It ignores `row_cost`, for methods derived for this cost: those that mask logits or use the
        Fisher information.

        Args:
            outputs: Outputs (n, outputs), as `predict` returns them.
            y: Targets, int64 (n,) or (n, outputs).
        """
        if self.kind == "classification":
            return functional.cross_entropy(self.among(outputs), y, reduction="none")
        return (outputs - y).square().flatten(1).mean(1)

    def of_classes(self, outputs: Tensor) -> Tensor:
        """Return outputs without those that are reserved for future classes.

        Args:
            outputs: Outputs (n, outputs), as `predict` returns them.
        """
        return outputs if self.classes is None else outputs[:, : self.classes]

    def among(self, outputs: Tensor) -> Tensor:
        """Return logits in which classes that are not `present` have probability 0.

        Args:
            outputs: Logits (n, outputs), as `predict` returns them.
        """
        return outputs if self.present is None else among(outputs, self.present)

    def errors(self, outputs: Tensor, y: Tensor, within: Tensor | None = None) -> Tensor:
        """Return the error of each row, float64 (n,): 0 or 1 for a class, else mean squared error.

        A row with logits that are not finite counts as wrong, whatever its argmax is.

        Args:
            outputs: Outputs (n, outputs), as `predict` returns them.
            y: Targets, int64 (n,) or (n, outputs).
            within: Mask of the classes that may be predicted, bool (n, classes); None for all.
        """
        if self.kind == "classification":
            outputs = self.among(outputs)
            finite = outputs.isfinite().all(-1)
            if within is not None:
                outputs = torch.where(within, outputs, -torch.inf)
            right = (outputs.argmax(-1) == y) & finite
            return 1.0 - right.to(torch.float64)
        return (outputs.to(torch.float64) - y).square().flatten(1).mean(1)


def among(logits: Tensor, classes: Tensor) -> Tensor:
    """Return logits in which only the classes of a mask have a probability above 0.

    The other logits are large negative numbers, not minus infinity, so that the loss of an absent
    row is finite before its weight 0 removes it.

    Args:
        logits: Logits (n, classes).
        classes: Mask of the classes to keep, bool (classes,) or (n, classes).
    """
    return torch.where(classes, logits, _ABSENT)


def initial_weights(model: Model, seeds: Sequence[int]) -> Theta:
    """Return the initial weights of several replicas, stacked: each leaf is (replicas, ...).

    Args:
        model: The model.
        seeds: Seed of each replica.
    """
    return stack([model.init(seed) for seed in seeds])


def _gate_module(network: Network, gate: Gate) -> nn.Module:
    """Return the module of a gate, built by the network."""
    modules = modules_of(network)
    return modules[0] if gate == "features" else nn.Sequential(*modules)


def has_convolution(model: Model) -> bool:
    """Return True if any layer is a convolution.

    Under vmap a convolution becomes a grouped one, which is slow on a CPU.

    Args:
        model: The model.
    """
    forward = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    transposed = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    return any(
        isinstance(layer, (*forward, *transposed))
        for part in model.parts.values()
        for layer in part.training.modules()
    )


def is_dense(model: Model) -> bool:
    """Return True if all layers with parameters are linear ones or normalise features.

    Args:
        model: The model.
    """
    layers = [layer for part in model.parts.values() for layer in part.evaluation.modules()]
    kinds = (nn.Linear, nn.BatchNorm1d, nn.LayerNorm)
    return all(isinstance(layer, kinds) or not layer._parameters for layer in layers)
