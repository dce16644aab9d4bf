"""Pairs of babel locales."""

from babel import Locale
from babel.core import UnknownLocaleError
from babel.localedata import locale_identifiers

from addnorm.core.errors import (
    UnknownNameError,
    UserError,
    closest_names,
    shorten_value,
    suggest_names,
)
from addnorm.data.demo.phrases import Pair


def locale_pair(source: str, target: str) -> Pair:
    """Return two different locales; raise UserError with the closest names for unknown ones."""
    pair = _parse_locale(source), _parse_locale(target)
    if pair[0] == pair[1]:
        raise UserError(
            f"languages: expected two different locales, got {source!r} on both sides; "
            "try 'en' and 'de'"
        )
    return pair


def _parse_locale(name: str) -> Locale:
    try:
        return Locale.parse(name.strip().replace("-", "_"))
    except (UnknownLocaleError, ValueError, TypeError):
        raise UnknownNameError(_unknown_locale_message(name)) from None


def _unknown_locale_message(name: str) -> str:
    known = locale_identifiers()
    words = {word.lower(): code for code, word in Locale("en").languages.items() if code in known}
    close = closest_names(name, words)[:1] if len(name) > 3 else []
    close = [words[word] for word in close] or closest_names(name, known)
    choices = f"expected one of the {len(known)} locales of babel, such as en, de, fr, ja, pt_BR"
    return suggest_names(f"unknown locale {shorten_value(name)!r}", close, choices)
