"""Readers of data, one module for each kind of source."""
