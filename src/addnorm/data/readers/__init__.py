"""TODO data/readers."""
