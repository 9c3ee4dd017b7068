"""Building blocks of learning: trees, keys, batches, memory, gradients, settings and the model."""
