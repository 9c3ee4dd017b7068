"""Checks for what a user adds: a method, stream, metric or network, as those of the package."""

from dpmcl.testing.members import check_metric, check_network, check_stream
from dpmcl.testing.method import check_method

__all__ = ["check_method", "check_metric", "check_network", "check_stream"]
