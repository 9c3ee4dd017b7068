"""Checks of the contracts of a stream, a metric and a network."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dpmcl.core.errors import Errors
from dpmcl.core.generators import forked
from dpmcl.core.model import Model
from dpmcl.data.stream_check import broken_promise
from dpmcl.exceptions import SpecError
from dpmcl.networks._network import NetworkSettings
from dpmcl.streams._settings import StreamSettings
from dpmcl.testing.promise import require


def check_stream(settings: StreamSettings) -> None:
    """Check that a stream keeps the promises of every stream; it is built three times.

    The same seeds give the same rows, whatever the state of the global generators, and a seed gives
    the same rows alone as in a group; tasks are in order; inputs are finite; and each label is the
    number of a class.

    Args:
        settings: Settings of the stream, with few tasks and rows so that the check is quick.

    Raises:
        SpecError: `settings` are not settings of a stream.
        AssertionError: The stream breaks a promise; the message says which, and what to do.

    >>> from dpmcl.streams.sine import Sine
    >>> check_stream(Sine(tasks=2, rows=5))
    """
    if not isinstance(settings, StreamSettings):
        raise SpecError(f"A stream's settings derive from StreamSettings, got {settings!r:.80}.")
    streams = []
    for seed in (0, 1):
        with forked(seed):
            streams.append(settings.build((0, 1)))
    broken = broken_promise(streams[0], (0, 1), settings.build)
    require("stream", broken is None, broken or "")
    first, repeat = (stream.digest() for stream in streams)
    require(
        "stream",
        first == repeat,
        "the same seeds give the same rows; draw from a generator made of the seeds, and keep "
        "nothing from one call of `build` to the next",
    )


def check_metric(metric: Callable[..., Any]) -> None:
    """Check that a metric keeps the promises of every metric, on errors of three replicas.

    It changes none of its arguments, returns one finite number for each replica, and the number of
    a replica does not depend on the others.

    Args:
        metric: A function of `Errors`, and optionally of `predictions`.

    Raises:
        SpecError: `metric` is not a function.
        AssertionError: The metric breaks a promise; the message says which, and what to do.

    >>> from dpmcl.metrics.cme import cme
    >>> check_metric(cme)
    """
    if not callable(metric):
        raise SpecError(f"A metric is a function of dpmcl.Errors, got {metric!r:.80}.")
    rng = np.random.default_rng(0)
    errors = Errors((0, 1, 2), rng.random((3, 4, 3)), np.tile([30, 10, 60], (3, 1)))
    predictions = {name: rng.integers(0, 3, (3, 100)) for name in ("test", "test.target")}
    reads = "predictions" in inspect.signature(metric).parameters

    def measure(replicas: slice) -> np.ndarray:
        part = Errors(
            errors.seeds[replicas],
            errors.values[replicas].copy(),
            errors.examples[replicas].copy(),
        )
        predicted = {name: values[replicas].copy() for name, values in predictions.items()}
        values = np.asarray(metric(part, **({"predictions": predicted} if reads else {})))
        same = np.array_equal(part.values, errors.values[replicas])
        same &= np.array_equal(part.examples, errors.examples[replicas])
        same &= all(np.array_equal(predicted[n], v[replicas]) for n, v in predictions.items())
        require("metric", same, "it changes nothing that it is given; copy before you write")
        require(
            "metric",
            values.shape == (len(part.seeds),) and bool(np.isfinite(values).all()),
            "it returns one finite number for each replica, also of one; NaN is for values that "
            "are not defined, and these errors are complete",
        )
        return values

    together = measure(slice(None))
    alone = np.concatenate([measure(slice(i, i + 1)) for i in range(3)])
    require(
        "metric",
        np.allclose(alone, together, rtol=1e-12, atol=1e-12),
        "a replica's number does not depend on the other replicas; take means over axes from 1",
    )


def check_network(settings: NetworkSettings, shape: tuple[int, ...], outputs: int = 3) -> None:
    """Check that a network can be used, as a run does before it begins.

    Rows are not mixed, forward passes make no draws and change nothing, two builds with one seed
    are equal, and the outputs have the right shape.

    Args:
        settings: Settings of the network.
        shape: Shape of one input.
        outputs: Width of the output.

    Raises:
        SpecError: `settings` are not settings of a network.
        ModelError: The network breaks a promise; the message says which, and what to do.

    >>> from dpmcl.networks.mlp import MLP
    >>> check_network(MLP(), (4,))
    """
    if not isinstance(settings, NetworkSettings):
        raise SpecError(f"A network's settings derive from NetworkSettings, got {settings!r:.80}.")
    example = torch.rand(6, *shape, generator=torch.Generator().manual_seed(0))
    Model.build(lambda: settings.build(shape, outputs), "classification", example, outputs)
