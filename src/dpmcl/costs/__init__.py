"""Costs of a row, from outputs and targets, one a file, found by file name."""
