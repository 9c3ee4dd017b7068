"""A learner for a user's own loop, which is trained on each chunk of rows when it arrives."""
