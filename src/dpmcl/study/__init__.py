"""A spec and its folder: what is missing is run, stored, and handed back."""
