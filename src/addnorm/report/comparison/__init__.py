"""TODO report/comparison."""
