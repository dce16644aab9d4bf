"""Probes: repeated runs of the model with changed inputs, which the leak rules are built on."""
