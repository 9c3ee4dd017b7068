"""Metrics, one a file, found by file name: pure functions of the error tensor.

A file sets `plugin` to a function of `Errors` that returns one number a replica, float64
(replicas,), NaN where it is not defined.
"""
