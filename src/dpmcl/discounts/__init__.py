"""Discounts gamma: one thing a file, found by its name."""
