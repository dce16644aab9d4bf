"""Analysis of a comparison: outcomes per arm, verdict and export."""
