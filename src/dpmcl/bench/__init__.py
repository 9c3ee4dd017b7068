"""How fast the package trains here: its engines beside the loop that a user would write.

Everything runs in one process, on random rows of the right shape, in interleaved rounds.
"""

from dpmcl.bench.report import text
from dpmcl.bench.run import bench, numbers

__all__ = ["bench", "numbers", "text"]
