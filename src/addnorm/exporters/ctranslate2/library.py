"""Import of CTranslate2, an optional dependency."""

from importlib import import_module
from typing import Any

from addnorm.core.errors import UserError


def import_ctranslate2() -> Any:
    """Return the module ctranslate2; raise `UserError` if it is not installed."""
    try:
        return import_module("ctranslate2")
    except ImportError:
        raise UserError(
            "expected ctranslate2 to be installed; run: pip install 'addnorm[export]'"
        ) from None
