"""TODO kernels/attention."""
