"""TODO tabular/columns."""
