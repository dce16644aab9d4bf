"""TODO doctor/analysis."""
