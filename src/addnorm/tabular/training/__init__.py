"""Training of table models: loop, row weights, targets and pre-training."""
