"""Analysis of a recorded graph: norms, branches and streams of every residual add."""
