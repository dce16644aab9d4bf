"""Sparse matrices as tables."""

import os
from typing import Any

from addnorm.core.errors import UserError

BYTES_PER_CELL = 40
"""Memory per cell of a sparse matrix that is encoded: copies as float64, and the mask."""


def check_sparse(X: Any, *, rows: int) -> Any:
    """Return a sparse matrix of numbers; raise `UserError` if it is too large for a dense table.

    A cell that is not stored is 0, not missing.

    Args:
        X: sparse matrix
        rows: number of rows that are encoded at once
    """
    if X.dtype.kind not in "biuf":
        raise UserError(f"X: expected a sparse matrix of real numbers, got type {X.dtype}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    size = X.shape[1] * min(X.shape[0], rows) * BYTES_PER_CELL
    if size > memory:
        raise UserError(
            f"X: expected a sparse matrix that fits into {memory >> 20:,} MB of memory as a dense "
            f"table, because the models embed every column of every row; got {X.shape[0]:,} x "
            f"{X.shape[1]:,} cells, which need about {size >> 20:,} MB; reduce the columns first, "
            "for example with SelectKBest or TruncatedSVD of scikit-learn"
        )
    return X
