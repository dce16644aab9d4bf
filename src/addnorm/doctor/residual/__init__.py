"""TODO doctor/residual."""
