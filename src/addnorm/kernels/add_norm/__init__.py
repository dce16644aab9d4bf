"""Fused dropout, residual add and norm.

`ops` holds the public functions and chooses between `reference`, the definition in plain torch, and
`autograd`, which differentiates through `native`, the calls of the C library.
"""
