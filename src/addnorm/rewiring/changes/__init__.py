"""Changes of an arrangement, one file each; all work in place on a float64 copy."""
