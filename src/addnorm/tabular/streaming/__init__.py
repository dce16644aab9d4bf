"""Fits to tables that are larger than memory: `partial_fit`, and files that are read in parts."""
