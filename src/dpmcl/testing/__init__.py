"""Checks for what a user adds: a method is tried on a small stream, as those of the package are."""

from dpmcl.testing.method import check_method

__all__ = ["check_method"]
