"""Every random draw as a function of (seed, purpose, task, phase, step).

The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
2011), written in int64 tensor operations. It gives the same words on a CPU and on a GPU, inside
`torch.func.vmap` and inside a captured graph, and is tested with the vectors that its authors
published. PyTorch's own generators take no keys and differ between devices.

There are two levels. `derive` turns (seed, purpose, task, phase, step) into a **key**, an int64
tensor (..., 2) of two 32-bit words. `bits` and the functions after it turn a key into numbers; each
`lane` gives independent draws under one key. Leading dimensions broadcast, so the keys of all
replicas and steps can be one tensor, and their draws another.

>>> key = derive(seed=7, purpose=Purpose.BATCH, task=3, step=100)
>>> integers(key, (5,), high=10).tolist()
[3, 9, 5, 9, 0]
"""

import math
from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


class Purpose(IntEnum):
    """Purpose of a draw. The numbers are part of every result: never renumber them."""

    WEIGHTS = 1  # initial weights
    SPLIT = 2  # which rows of a task train, validate and test
    BATCH = 3  # rows of a batch
    MEMORY = 4  # which rows a memory keeps
    DROPOUT = 5  # dropout masks
    STREAM = 6  # tasks that a stream draws (SINE), in place of reading them
    ORDER = 7  # order of classes, tasks or rows, and permutations of a domain-incremental stream
    PROBE = 8  # rows on which a run is monitored; separate, so that monitoring changes no result
    PROBE_DROPOUT = 9  # keys of an update that is monitored
    PASS = 10  # order of the rows in a pass without replacement
    OPTION = 11  # draws of an option at the start of a task


def philox(counter: Sequence[Tensor], key: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Return the four output words of Philox4x32 after ten rounds, tensors of 32-bit words.

    Args:
        counter: Four tensors of 32-bit words held in int64, broadcastable with one another.
        key: Two tensors of 32-bit words held in int64.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # int64 products wrap; the mask after the arithmetic shift restores the unsigned high word.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK) ^ c1 ^ k0,
            p1 & _MASK,
            ((p0 >> 32) & _MASK) ^ c3 ^ k1,
            p0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def derive(
    seed: int | Tensor,
    purpose: Purpose,
    task: int | Tensor = 0,
    phase: int | Tensor = 0,
    *,
    step: int | Tensor = 0,
) -> Tensor:
    """Return the key of one draw: int64 (..., 2), where ... is the arguments' broadcast shape.

    Args:
        seed: Seed of the replica.
        purpose: Purpose of the draw.
        task, phase, step: Numbers of the task, the phase and the step of the draw.

    >>> derive(7, Purpose.BATCH, task=3, step=100).tolist()
    [1941760761, 2593808117]
    """
    device = next((v.device for v in (seed, task, phase, step) if isinstance(v, Tensor)), None)
    seed, task, phase, step = (
        torch.as_tensor(v, dtype=torch.int64, device=device) for v in (seed, task, phase, step)
    )
    counter = (torch.full_like(task, int(purpose)), task, phase, step)
    words = philox(counter, (seed & _MASK, (seed >> 32) & _MASK))
    return torch.stack(torch.broadcast_tensors(words[0], words[1]), dim=-1)


def as_seed(key: Tensor) -> int:
    """Return a seed made from a key, for a generator that takes no keys.

    Args:
        key: One key, int64 (2,).
    """
    return int((key[0] << 31) | (key[1] >> 1))


def bits(key: Tensor, n: int, lane: int = 0) -> Tensor:
    """Return n words of 32 bits for each key: int64 (..., n).

    Args:
        key: Keys, int64 (..., 2).
        n: Number of words.
        lane: Number of the draw under the key; below 2^63.
    """
    block = torch.arange(-(-n // 4), dtype=torch.int64, device=key.device)
    zero = torch.zeros_like(block)
    counter = (block, zero + (lane & _MASK), zero + (lane >> 32), zero)
    words = philox(counter, (key[..., 0:1], key[..., 1:2]))
    return torch.stack(words, dim=-1).flatten(-2)[..., :n]


def uniform(key: Tensor, shape: Sequence[int], lane: int = 0) -> Tensor:
    """Return uniform numbers in [0, 1) of 24 bits: float32 (..., *shape), exact in wider types.

    Args:
        key: Keys, int64 (..., 2).
        shape: Shape of the numbers for one key; () for one number.
        lane: Number of the draw under the key.
    """
    words = bits(key, math.prod(shape), lane) >> 8
    return (words.to(torch.float32) * 2.0**-24).reshape((*words.shape[:-1], *shape))


def normal(key: Tensor, shape: Sequence[int], lane: int = 0) -> Tensor:
    """Return standard normal numbers: float64 (..., *shape), by the Box-Muller transform.

    Args:
        key: Keys, int64 (..., 2).
        shape: Shape of the numbers for one key; () for one number.
        lane: Number of the draw under the key.
    """
    u, v = uniform(key, (2, *shape), lane).to(torch.float64).unbind(key.dim() - 1)
    return (-2 * torch.log1p(-u)).sqrt() * torch.cos(2 * math.pi * v)


def integers(key: Tensor, shape: Sequence[int], high: int | Tensor, lane: int = 0) -> Tensor:
    """Return uniform integers in [0, high), int64 (..., *shape).

    The probability of each value is exact up to 2^-32.

    Args:
        key: Keys, int64 (..., 2).
        shape: Shape of the integers for one key; () for one integer.
        high: Bound below 2^31, or bounds that broadcast against the result; 0 gives 0.
        lane: Number of the draw under the key.
    """
    words = bits(key, math.prod(shape), lane)
    return (words.reshape((*words.shape[:-1], *shape)) * high) >> 32


def scores(key: Tensor, n: int, lane: int = 0) -> Tensor:
    """Return n random 62-bit integers, int64 (..., n); their argsort is a random permutation.

    Args:
        key: Keys, int64 (..., 2).
        n: Number of integers for one key.
        lane: Number of the draw under the key.
    """
    words = bits(key, 2 * n, lane)
    return ((words[..., 0::2] >> 1) << 31) | (words[..., 1::2] >> 1)


def permutation(key: Tensor, n: int, lane: int = 0) -> Tensor:
    """Return a permutation of 0 .. n-1 for each key: int64 (..., n).

    Args:
        key: Keys, int64 (..., 2).
        n: Length of the permutation.
        lane: Number of the draw under the key.
    """
    return torch.argsort(scores(key, n, lane), dim=-1, stable=True)
