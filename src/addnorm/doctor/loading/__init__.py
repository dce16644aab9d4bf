"""TODO doctor/loading."""
