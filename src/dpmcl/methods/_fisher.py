"""The diagonal of the Fisher information, row by row."""

import math
from typing import Literal

import torch
from torch import Tensor

from dpmcl.core import keys
from dpmcl.core.batch import Batch
from dpmcl.core.gradients import gradient
from dpmcl.core.model import Model, Theta
from dpmcl.core.tree import tree_map

Targets = Literal["sampled", "empirical"]
"""Targets of the losses: "sampled" from the model's predictions, or "empirical", from the data."""


def squared_gradients(
    model: Model, theta: Theta, batch: Batch, targets: Targets, *, key: Tensor
) -> Theta:
    """Return the weighted sum over rows of the squared gradient of each row's loss.

    Args:
        model: The model, with the running statistics of theta.
        theta: Parameters by part.
        batch: n rows and their weights.
        targets: Targets of the losses, "sampled" or "empirical".
        key: Random key for drawing targets.
    """
    y = batch.y
    if targets == "sampled":
        y = sample_targets(model, model.predict(theta, batch.x), key)

    def loss(theta: Theta, x: Tensor, y: Tensor) -> Tensor:
        return model.usual_losses(model.predict(theta, x[None]), y[None])[0]

    row_gradient = gradient(loss)
    gradients = torch.func.vmap(lambda x, y: row_gradient(theta, x, y)[0])(batch.x, y)
    return tree_map(lambda g: torch.einsum("i,i...->...", batch.w, g.square()), gradients)


def sample_targets(model: Model, outputs: Tensor, key: Tensor) -> Tensor:
    """Return targets drawn from a model's predictions: classes, or values of a regression.

    Args:
        model: The model, for its kind and its classes.
        outputs: Its outputs (n, outputs).
        key: Random key of the draw.
    """
    outputs = model.of_classes(outputs)
    n, width = outputs.shape
    if model.kind == "regression":
        # exp(-loss) is a normal density of variance width / 2; any noise of that variance will do.
        sign = torch.where(keys.uniform(key, (n, width)) < 0.5, -1.0, 1.0).to(outputs.dtype)
        return outputs + sign * math.sqrt(width / 2)
    edge = torch.softmax(outputs, 1).cumsum(1)
    u = keys.uniform(key, (n, 1)).to(outputs.dtype)
    chosen: Tensor = (edge <= u * edge[:, -1:]).sum(1).clamp(max=width - 1)
    return chosen
