"""Readers of data, one file for each kind of source."""
