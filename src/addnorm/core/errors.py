"""Errors a user can reach: each says what was got, what was wanted and what to try."""

import difflib
import re
from collections.abc import Iterable


class UserError(ValueError):
    """The caller's mistake. The command line prints it as one line and exits with 2."""


class UnknownNameError(UserError):
    """A name that nobody registered."""


class ArrangementMismatchError(UserError):
    """Weights of one arrangement were offered to another."""


class InnerNormsIgnoredWarning(UserWarning):
    """A wiring has norms inside its sub-layers, and these sub-layers have no place for them."""


class WeightsNotInitializedWarning(UserWarning):
    """`initialise` met weights whose role it cannot know."""


def closest_names(word: str, known: Iterable[str]) -> list[str]:
    """The known names that look like `word`, best first; case, underscores, hyphens and blanks do
    not count.

    >>> nearest("PostLN", ["pre_ln", "post_ln", "b2t"])
    ['post_ln']
    """
    plain = {_normalize_name(name): name for name in known}
    matches = difflib.get_close_matches(_normalize_name(word), plain, n=3, cutoff=0.6)
    return [plain[match] for match in matches]


def unknown_name_message(kind: str, value: str, known: Iterable[str]) -> str:
    """The sentence for a name that is not known: nearest names first, then all of them."""
    known = list(known)
    value = value if len(value) <= 80 else f"{value[:77]}..."
    close = closest_names(value, known)
    hint = f" did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
    return f"unknown {kind} {value!r};{hint} Known: {', '.join(known) or 'none'}"


def _normalize_name(word: str) -> str:
    return re.sub(r"[\s_-]", "", word).lower()
