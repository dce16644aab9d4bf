"""Training: optimizers, schedules, losses, the loop, checkpoints."""
