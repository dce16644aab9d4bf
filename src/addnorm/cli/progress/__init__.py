"""Callbacks that report progress on standard error.

Each has two variants: a live display for terminals and log lines for files and pipes.
"""
