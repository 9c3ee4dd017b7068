"""Metrics, one a file, found by file name: pure functions of a record.

A file sets `plugin` to a function of `Errors` that returns one number a replica, float64
(replicas,), NaN where it is not defined. If it has a parameter `predictions`, it also gets the
predictions that the run kept: arrays by split, replicas first.
"""
