"""Checks, before training, that a method can be trained on its stream with its network."""

import logging

import torch
from torch import nn

from dpmcl import plugins
from dpmcl.core.network_layers import modules_by_mode, named_layers
from dpmcl.core.tree import at
from dpmcl.exceptions import SpecError
from dpmcl.methods._method import name_of_cost
from dpmcl.optimisers.theorem import Theorem
from dpmcl.training.second_order import check_second_derivatives
from dpmcl.training.setup import Setup

_LOG = logging.getLogger("dpmcl")


def check(setup: Setup, drift: str = "inputs") -> None:
    """Check before training that a method can be trained on its stream with its network.

    Logs a warning if a layer may take whole numbers from inputs that are scaled, if the network
    takes a softmax that the cost takes again, or if a cost that may need whole targets gets scaled
    ones.

    Args:
        setup: Setup of the run.
        drift: How the monitor finds dx (`monitor.drift`).

    Raises:
        SpecError: The method draws rows that it may not see, augments inputs that are not images,
            makes passes over tasks whose replicas have different numbers of rows, or needs dx in a
            form that the stream cannot supply.
        ModelError: The method needs second derivatives, which the network does not have.
    """
    _check_augmentation(setup)
    _check_passes(setup)
    _check_splits(setup)
    check_second_derivatives(setup)
    _check_motion(setup, drift)
    _warn_of_embeddings(setup)
    _warn_of_probabilities(setup)
    _warn_of_scaled_targets(setup)


def _check_augmentation(setup: Setup) -> None:
    """Check that the inputs are images if the method augments its batches."""
    shape = tuple(setup.stream.x.shape[1:])
    if setup.method.augmenting and len(shape) != 3:
        raise SpecError(
            "augment changes images, (channels, height, width), and this stream's inputs have the "
            f"shape {shape}; leave `augment` out for it."
        )


def _check_passes(setup: Setup) -> None:
    """Check that a pass over a task's rows has the same updates in all replicas."""
    counts = setup.splits.train.offset.diff(dim=1)
    unequal = (counts != counts[0]).any(dim=0).nonzero()
    if setup.method.passes is not None and len(unequal):
        task = int(unequal[0])
        raise SpecError(
            "passes needs as many training rows of a task in every replica, or results of a seed "
            f"depend on the seeds beside it; task {task} ('{setup.stream.tasks[task]}') has "
            f"{int(counts[:, task].min())} to {int(counts[:, task].max())}. Set updates instead."
        )


def _check_splits(setup: Setup) -> None:
    """Check that a method declares it if it trains on validation rows."""
    if setup.method.trains_on_validation:
        return
    tasks = (*setup.phases, *setup.evaluation_phases)
    for phase in (phase for phases in tasks for phase in phases):
        for name, draw in phase.draws.items():
            if draw.split == "validation":
                raise SpecError(
                    f"Draw '{name}' of phase '{phase.name}' has validation rows, which other "
                    "methods never train on; set trains_on_validation = True in "
                    f"{type(setup.method).__name__}, so that tables say so."
                )


def _check_motion(setup: Setup, drift: str) -> None:
    """Check that the stream can supply dx in the form that the run needs."""
    method, stream = setup.method, setup.stream
    requests = {"monitor.drift": drift}
    if isinstance(method.rule, Theorem):
        requests["optimiser.drift"] = method.rule.drift
    for phase in setup.phases[0]:
        for name, draw in phase.draws.items():
            setting = hasattr(method, "fourth_term")
            requests["fourth_term" if setting else f"draw '{name}', moved"] = draw.moved or ""
    for name, how in requests.items():
        if how == "exact" and stream.following is None:
            raise SpecError(
                f"{name} = 'exact' needs a stream that knows its dynamics (one of an equation, as "
                f"lorenz), got '{stream.name}'; leave it out, or estimate."
            )
        if how == "estimated" and stream.kind != "regression":
            raise SpecError(
                f"{name} = 'estimated' moves inputs and targets of a regression, got the classes "
                f"of '{stream.name}'; use 'off'."
            )


def _warn_of_embeddings(setup: Setup) -> None:
    """Log a warning if a layer embeds whole numbers, and inputs are scaled."""
    scaled = setup.stream.scaled
    if scaled is None or not scaled.any():
        return
    for label, layer in named_layers(modules_by_mode(setup.model.parts)[0]):
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
            line = (
                f"{label} takes whole numbers, and columns of numbers are scaled, which makes "
                "fractions of them; if it takes such a column, set scale = false."
            )
            _LOG.warning(line, extra={"once": line})


def _warn_of_probabilities(setup: Setup) -> None:
    """Log a warning if outputs are probabilities, of which the cost takes the softmax again."""
    model, stream = setup.model, setup.stream
    if model.kind != "classification" or model.row_cost is not None or stream.outputs == 1:
        return
    state = at(setup.start, 0)
    with torch.no_grad():
        x = stream.example(model.dtype)
        outputs = model.holding(state.buffers).predict(state.theta, x).double()
    if bool((outputs >= 0).all()) and bool((outputs.sum(1) - 1).abs().max() < 1e-5):
        line = (
            "The network's outputs are probabilities (each row's sum is 1), and the cost, the "
            "cross-entropy, takes their softmax again; leave out the network's own softmax, or "
            "give a cost that takes probabilities."
        )
        _LOG.warning(line, extra={"once": line})


def _warn_of_scaled_targets(setup: Setup) -> None:
    """Log a warning if targets that may be labels or counts are scaled, and the cost is a user's.

    A binary cross entropy or a Poisson cost of scaled targets, some of them negative, has no
    minimum.
    """
    cost, stream = setup.method.cost, setup.stream
    if cost is None or plugins.is_ours("cost", cost) or stream.scaled is None:
        return
    y = stream.y
    if stream.kind == "regression" and bool(((y >= 0) & (y == y.round())).all()):
        line = (
            f"The cost '{name_of_cost(cost)}' gets targets scaled to mean 0 and standard deviation "
            "1, and they are whole numbers; if it needs them as they are, as 0 and 1 or counts, "
            "set scale = false, and scale the columns yourself."
        )
        _LOG.warning(line, extra={"once": line})
