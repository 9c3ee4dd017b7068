"""Training: one method on one stream for a group of seeds."""
