"""Metrics, one a file, found by file name: pure functions of a run's record.

A file sets `plugin` to a function of `Errors` that returns one number for each replica, float64
(replicas,), NaN if it is not defined. If the function has a parameter `predictions`, it also gets
the predictions that the run kept: a dict of arrays (replicas, rows, ...), by name, such as "test".
"""
