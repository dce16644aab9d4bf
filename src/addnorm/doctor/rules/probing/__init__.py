"""TODO doctor/rules/probing."""
