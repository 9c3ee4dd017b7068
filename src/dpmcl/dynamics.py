"""Streams whose tasks are the states of a differential equation, in windows of time."""
