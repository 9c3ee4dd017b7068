"""What learning is made of: trees, keys, batches, memory, gradients, optimisers, the model."""
