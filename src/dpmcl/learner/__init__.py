"""A learner in a user's own loop: rows come in chunks, and the next is learned when it is there."""
