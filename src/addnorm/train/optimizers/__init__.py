"""Optimizers, chosen by name; `base.py` explains how to add one."""
