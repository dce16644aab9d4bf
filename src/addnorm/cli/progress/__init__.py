"""TODO cli/progress."""
