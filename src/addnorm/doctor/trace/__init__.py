"""TODO doctor/trace."""
