"""Conventions of transformers: masks, and the optional import of the library."""

from typing import Any

from torch import Tensor

from addnorm.core.errors import UserError


def to_bool_mask(name: str, mask: Tensor | None, ids: Tensor | None) -> Tensor | None:
    """Convert a mask of 1 (valid) and 0 to a boolean mask; check its shape.

    Args:
        name: name of the argument, for error messages
        mask: (B, L) mask, or None
        ids: (B, L) tokens that the mask belongs to
    """
    if mask is None:
        return None
    if ids is None or mask.shape != ids.shape:
        raise UserError(
            f"{name}: expected the shape of its tokens, "
            f"{None if ids is None else tuple(ids.shape)}, got {tuple(mask.shape)}"
        )
    return mask.bool()


def transformers_library() -> Any:
    """Import transformers, an optional dependency; raise `UserError` if it is not installed."""
    try:
        import transformers
    except ImportError:
        raise UserError(
            "expected transformers to be installed; run: pip install 'addnorm[interop]'"
        ) from None
    return transformers
