"""TODO claims/catalogue."""
