"""TODO kernels/add_norm."""
