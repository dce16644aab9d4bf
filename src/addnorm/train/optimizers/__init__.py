"""Optimizers of torch, chosen by call string."""
