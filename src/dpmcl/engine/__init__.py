"""Engines apply a function of one replica to many replicas, and run segments of updates for all.

`looped` computes one replica after another. It is the reference in tests, the fallback for modules
that vmap cannot map, and faster for convolutions on a CPU. `batched` maps all replicas at once; on
a GPU it records the update as a CUDA graph and replays it. Both give the same results up to
rounding.
"""

from dpmcl.engine.batched import Batched
from dpmcl.engine.choice import choose, device_of, group_size
from dpmcl.engine.contract import Engine, Feed
from dpmcl.engine.looped import Looped

__all__ = [
    "Batched",
    "Engine",
    "Feed",
    "Looped",
    "choose",
    "device_of",
    "group_size",
]
