"""Diagnosis of the rows of a run, in words."""
