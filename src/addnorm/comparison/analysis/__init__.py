"""TODO comparison/analysis."""
