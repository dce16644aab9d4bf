"""Optional import of transformers."""

from typing import Any

from addnorm.core.errors import UserError


def transformers_library() -> Any:
    """Import transformers, an optional dependency; raise `UserError` if it is not installed."""
    try:
        import transformers
    except ImportError:
        raise UserError(
            "expected transformers to be installed; run: pip install 'addnorm[interop]'"
        ) from None
    return transformers
