"""TODO report/charts."""
