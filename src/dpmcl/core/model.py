"""A model: a representation h(x; theta_1), a prediction g(.; theta_2), and the cost of a row.

Any `torch.nn.Module`s, used as pure functions of their parameters. `theta` is a dict of parts,
{"representation": theta_1, "prediction": theta_2}, each a dict of tensors by parameter name.

`Model.build` copies a module, replaces its dropout by a keyed one, its BatchNorm by one that knows
absent rows, for a GPU its convolutions by those of `dpmcl.core.convolution`, and checks it
(`dpmcl.core.network_check`).
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
from dpmcl.core.cost import RowCost
from dpmcl.core.generators import forked
from dpmcl.core.gradients import count_rows
from dpmcl.core.network_check import check
from dpmcl.core.part import PARTS, Modules, Network, Part, drawing, modules_of, part_of, trainable
from dpmcl.core.part import Buffers as Buffers
from dpmcl.core.part import Parameters as Parameters
from dpmcl.core.part import Theta as Theta
from dpmcl.core.precision import Precision, products
from dpmcl.core.tree import stack
from dpmcl.exceptions import ModelError

Gate = Literal["features", "outputs"]
Kind = Literal["classification", "regression"]

_ABSENT = -1e30
"""Logit of a class that is not there: exp gives 0, and all derivatives stay finite."""


@dataclass(frozen=True)
class Model:
    """h, g and the cost, as pure functions for one replica; `Model.build` makes one.

    Attributes:
        network: Builds (representation, prediction) with new initial weights at each call.
        kind: "classification" (cross entropy on logits) or "regression" (mean squared error).
        parts: The two modules, and a gate if there is one, as functions.
        dtype: Type of parameters, features, outputs and losses.
        device: Where they are computed.
        gate: What a third network multiplies (`gated`), or None.
        convolutions, precision: How h and g are computed (`core.convolution`, `core.precision`).
        buffers: Running statistics that evaluation uses (`holding`), or None.
        present: Classes that there are, bool (outputs,); None for all. The others are room for
            classes to come, which neither costs nor answers know of.
        classes: How many classes there are, the first outputs, where `present` is set.
        row_cost: The cost of a row in place of that of the kind (`core.cost`), or None.
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
        convolutions: Convolutions | None = None,
        precision: Precision | None = None,
    ) -> "Model":
        """Return a model, built and checked for what a run needs.

        Args:
            network: Makes (representation, prediction) with new initial weights at each call.
            kind: "classification" or "regression".
            example: Inputs (n, ...) as the stream delivers them.
            outputs: Width of g's output.
            dtype: Type of parameters and results.
            device: Where to compute; None is where the example is.
            convolutions: "patches" replaces plain nn.Conv2d layers by equal ones whose weight
                gradient is a product of matrices, "native" keeps them; None is "patches" on a GPU
                and "native" on a CPU.
            precision: Of products in h and g.

        Raises:
            ModelError: The network cannot be used; says why, and the way out.
        """
        device = device or example.device
        convolutions = convolutions or preferred(device)

        def made(modules: Modules) -> dict[str, Part]:
            lanes = iter(range(1 << 20))
            return {
                name: part_of(module, lanes, convolutions=convolutions, dtype=dtype, device=device)
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
        """Return the initial weights of one replica: the network's own draw, under its own seed.

        Frozen parameters (requires_grad=False) are constants of the parts and not in theta.

        Args:
            seed: The replica's.
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
            Part -> name -> tensor, for parts with BatchNorm layers alone; {} for other networks.
        """
        return {
            name: {k: buffer.clone() for k, buffer in part.statistics.items()}
            for name, part in self.parts.items()
            if part.statistics
        }

    def holding(self, buffers: Buffers) -> "Model":
        """Return the same model, whose evaluation (key None) uses these running statistics.

        Args:
            buffers: As `init_buffers` or `moved` returns them; of one replica, within vmap too.
        """
        return replace(self, buffers=buffers)

    def with_room(self, classes: int, outputs: int) -> "Model":
        """Return the same model, of whose outputs the first alone are classes.

        Args:
            classes: How many classes there are.
            outputs: Width of the network's output.
        """
        present = torch.arange(outputs, device=self.device) < classes
        return replace(self, present=present, classes=classes)

    def moved(self, theta: Theta, x: Tensor, w: Tensor, key: Tensor) -> Buffers:
        """Return the running statistics after one training pass, from those that the model holds.

        PyTorch's rule: momentum, unbiased variance. Rows of weight 0 do not count, and where no
        row is present nothing moves.

        Args:
            theta: Parameters of one replica.
            x: Inputs (n, ...).
            w: Weights of the rows (n,).
            key: Key of what is drawn in the pass.

        Raises:
            ModelError: The model holds no running statistics, and its network has some.
        """
        after: Buffers = {}

        def run(part: str, x: Tensor) -> Tensor:
            held = self._held(part)
            out, after[part] = self._run(part, theta[part], x, key, w=w, statistics=held)
            return out

        if not self._norms:
            return {}
        features = run("representation", x)
        if self.gate:
            gate = run("gate", x)
            features = features * torch.sigmoid(gate) if self.gate == "features" else features
        if "prediction" in self._norms:
            run("prediction", features)
        return {part: statistics for part, statistics in after.items() if statistics}

    def gated(self, gate: Gate) -> "Model":
        """Return the same model with a gate: a network more, part "gate" of theta, that multiplies.

        The other parts start from the same weights as without a gate.

        Args:
            gate: "features" for a network of h's shape, whose sigmoid multiplies h's features;
                "outputs" for one of the shape of g(h(.)), whose outputs multiply the model's.
        """
        lanes = iter(range(1 << 20, 1 << 21))
        with forked(0):
            module = _gate_module(self.network, gate)
        part = part_of(
            module, lanes, convolutions=self.convolutions, dtype=self.dtype, device=self.device
        )
        parts = {**self.parts, "gate": part}
        return replace(self, parts=drawing(parts, parts["representation"].draws), gate=gate)

    def features(
        self, theta_1: Parameters, x: Tensor, key: Tensor | None = None, *, w: Tensor | None = None
    ) -> Tensor:
        """Return h(x; theta_1), the features (n, ...).

        Args:
            theta_1: Parameters of the representation.
            x: Inputs (n, ...).
            key: Key of what is drawn in training (dropout); None for evaluation.
            w: Weights of the rows (n,), of which BatchNorm in training needs to know which are 0;
                None if all rows are present.
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
            features: As `features` returns them.
            key, w: As for `features`.
        """
        return self._apply("prediction", theta_2, features, key, w=w)

    def predict(
        self, theta: Theta, x: Tensor, key: Tensor | None = None, *, w: Tensor | None = None
    ) -> Tensor:
        """Return g(h(x; theta_1); theta_2), gated if the model has a gate.

        Args:
            theta: Parameters by part.
            x: Inputs (n, ...).
            key, w: As for `features`.
        """
        return self.answer(theta, self.seen(theta, x, key, w=w), x, key, w=w)

    def seen(
        self, theta: Theta, x: Tensor, key: Tensor | None = None, *, w: Tensor | None = None
    ) -> Tensor:
        """Return what g sees of x: the features, multiplied by a gate of features if there is one.

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
        """Return g of what it sees, multiplied by a gate of outputs if there is one.

        Args:
            theta: Parameters by part.
            seen: As `seen` returns it.
            x: Inputs (n, ...), which a gate sees.
            key, w: As for `features`.
        """
        outputs = self.outputs(theta["prediction"], seen, key, w=w)
        if self.gate != "outputs":
            return outputs
        return outputs * self._apply("gate", theta["gate"], x, key, w=w)

    @property
    def _norms(self) -> list[str]:
        """Parts with running statistics."""
        return [name for name, part in self.parts.items() if part.statistics]

    def _held(self, part: str) -> Parameters:
        """Return the running statistics that a part uses."""
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
        """Return the output of a part in the model's type."""
        held = self._held(part) if key is None else {}
        out, _ = self._run(part, parameters, x, key, w=w, statistics=held)
        if part != "gate":
            count_rows(part, out)
        return out

    def _run(
        self, part: str, parameters: Parameters, x: Tensor, key: Tensor | None, **arguments: Any
    ) -> tuple[Tensor, Parameters]:
        """Return what `Part.apply` returns, computed in the model's precision, in its type."""
        with products(self.precision, self.device):
            out, statistics = self.parts[part].apply(parameters, x, key, **arguments)
        return (out.to(self.dtype) if out.dtype == torch.bfloat16 else out), statistics

    def cost(self, theta: Theta, batch: Batch, key: Tensor | None = None) -> Tensor:
        """Return J, the weighted mean of the losses of a batch; 0 for a batch without rows.

        J_N, J_P and J_PN of the paper are this cost on b_N, b_P and b_PN.

        Args:
            theta: Parameters by part.
            batch: Rows of one replica.
            key: Key of the dropout masks in training; None for evaluation.
        """
        outputs = self.predict(theta, batch.x, key, w=batch.w)
        return weighted_mean(self.losses(outputs, batch.y), batch.w)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the cost of each row (n,): `row_cost`, or that of the kind.

        Args:
            outputs: As `predict` returns them.
            y: Targets, int64 (n,) or (n, outputs).
        """
        if self.row_cost is None:
            return self.usual_losses(outputs, y)
        return self.row_cost(outputs if self.classes is None else outputs[:, : self.classes], y)

    def usual_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the cost of each row (n,): cross entropy on logits, or mean squared error.

        For what is derived for that cost: a mask over logits, the Fisher information.

        Args:
            outputs: As `predict` returns them.
            y: Targets, int64 (n,) or (n, outputs).
        """
        if self.kind == "classification":
            return functional.cross_entropy(self.among(outputs), y, reduction="none")
        return (outputs - y).square().flatten(1).mean(1)

    def among(self, outputs: Tensor) -> Tensor:
        """Return logits that are so low for classes not `present` that their share is 0.

        Args:
            outputs: As `predict` returns them.
        """
        return outputs if self.present is None else among(outputs, self.present)

    def errors(self, outputs: Tensor, y: Tensor, within: Tensor | None = None) -> Tensor:
        """Return the error of each row, float64 (n,): 0 or 1 for a class, else mean squared error.

        Outputs that are not finite are wrong, whatever an argmax would make of them.

        Args:
            outputs: As `predict` returns them.
            y: Targets, int64 (n,) or (n, outputs).
            within: Classes among which the answer is searched, bool (n, classes); None for all.
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
    """Return logits in which all but some classes are so low that their share is 0.

    They are not minus infinity: the loss of an absent row stays a number, and its weight is 0.

    Args:
        logits: (n, classes).
        classes: Those that compete, bool (classes,) or (n, classes).
    """
    return torch.where(classes, logits, _ABSENT)


def initial(model: Model, seeds: Sequence[int]) -> Theta:
    """Return the initial weights of many replicas, stacked: leaf (replicas, ...).

    Args:
        model: The model that they train.
        seeds: One for each replica.
    """
    theta: Theta = stack([model.init(seed) for seed in seeds])
    return theta


def _gate_module(network: Network, gate: Gate) -> nn.Module:
    """Build the network of a gate."""
    modules = modules_of(network)
    return modules[0] if gate == "features" else nn.Sequential(*modules)


def has_convolution(model: Model) -> bool:
    """Return True if any layer is a convolution; mapped, it is slow and grouped on a CPU.

    Args:
        model: The model to look at.
    """
    forward = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    transposed = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    return any(
        isinstance(layer, (*forward, *transposed))
        for part in model.parts.values()
        for layer in part.training.modules()
    )
