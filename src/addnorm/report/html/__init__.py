"""TODO report/html."""
