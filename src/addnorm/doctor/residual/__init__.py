"""Residual adds: the additions of a graph that put a branch back onto its stream."""
