"""TODO train/optimizers."""
