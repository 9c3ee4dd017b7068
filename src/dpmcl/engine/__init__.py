"""Engines run a function of one replica over many, and a chunk of updates for all of them.

`looped` takes one replica after another: the oracle in tests, the fallback for modules that
cannot be mapped, and the faster way for convolutions on a CPU. `batched` maps all of them at once,
and on a GPU records the update and replays it. Both give the same results, to rounding.
"""

from dpmcl.core.choices import DeviceName, EngineName
from dpmcl.engine.batched import Batched
from dpmcl.engine.choice import choose, device_of, group_size
from dpmcl.engine.contract import Engine, Feed
from dpmcl.engine.looped import Looped

__all__ = [
    "Batched",
    "DeviceName",
    "Engine",
    "EngineName",
    "Feed",
    "Looped",
    "choose",
    "device_of",
    "group_size",
]
