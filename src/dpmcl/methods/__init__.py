"""Learning methods, one in each file, found by the file's name. `plugin` is the method's class."""
