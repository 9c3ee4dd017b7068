"""Options that every method can have, one a file, found by file name."""
