"""Discounts gamma, one a file, found by file name. A file sets `plugin` to its class."""
