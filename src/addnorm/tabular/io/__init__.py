"""TODO tabular/io."""
