"""Checks of the contracts of methods, streams, metrics and networks, for those that users add."""

from dpmcl.testing.members import check_metric, check_network, check_stream
from dpmcl.testing.method import check_method

__all__ = ["check_method", "check_metric", "check_network", "check_stream"]
