"""Networks, one family a file, found by file name. A file sets `plugin` to its settings class."""
