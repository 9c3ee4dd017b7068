"""Streams of tasks, one per module, found by its name; `plugin` is the class of its settings."""
