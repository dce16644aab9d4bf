"""Pairs of babel locales."""

from babel import Locale
from babel.core import UnknownLocaleError
from babel.localedata import locale_identifiers

from addnorm.core.errors import UnknownNameError, UserError, closest_names
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
    hint = f" did you mean {' or '.join(map(repr, close))}?" if close else ""
    got = name if len(name) <= 80 else f"{name[:77]}..."
    return (
        f"unknown locale {got!r};{hint} Known: the {len(known)} locales of babel, such as"
        " 'en', 'de', 'fr', 'ja', 'pt_BR'"
    )
