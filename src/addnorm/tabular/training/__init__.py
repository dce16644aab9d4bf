"""TODO tabular/training."""
