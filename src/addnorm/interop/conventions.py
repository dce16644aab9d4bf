"""Where the conventions of transformers end and ours begin."""

from typing import Any

from torch import Tensor

from addnorm.core.errors import UserError


def to_bool_mask(name: str, mask: Tensor | None, ids: Tensor | None) -> Tensor | None:
    """A mask of 1 and 0 as ours."""
    if mask is None:
        return None
    if ids is None or mask.shape != ids.shape:
        raise UserError(
            f"{name} must have the shape of its tokens, "
            f"{None if ids is None else tuple(ids.shape)}, got {tuple(mask.shape)}"
        )
    return mask.bool()


def transformers_library() -> Any:
    """The library, which is wanted only here."""
    try:
        import transformers
    except ImportError:
        raise UserError(
            "this needs transformers, which is not installed: pip install 'addnorm[interop]'"
        ) from None
    return transformers
