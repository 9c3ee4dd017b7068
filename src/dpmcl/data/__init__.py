"""From a source of data to a stream of tasks: labelled rows, scenarios, splits, draws."""
