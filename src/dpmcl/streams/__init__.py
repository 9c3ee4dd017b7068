"""Streams of tasks, one a file, found by file name. A file sets `plugin` to its settings class."""
