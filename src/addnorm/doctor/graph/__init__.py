"""TODO doctor/graph."""
