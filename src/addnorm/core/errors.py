"""Errors caused by the caller, and suggestions for misspelled names.

A message names the argument first, then says what was expected, what was passed and what to do.
"""

import difflib
import re
from collections.abc import Iterable, Sequence

MAX_MESSAGE_LENGTH = 2000


class UserError(ValueError):
    """Invalid input. The command line prints the message as one line and exits with code 2.

    The message is one printable line whatever values it quotes, such as tensors or whole files.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(format_one_line(str(message)))


class UnknownNameError(UserError):
    """A name that is not registered."""


class ArrangementMismatchError(UserError):
    """Weights of one arrangement were loaded into another."""


class ExportRefusedError(UserError):
    """A model has a part that an export target cannot express."""


class ExportMismatchError(UserError):
    """An exported model does not compute what the original computes. Exit code 1."""


class InnerNormsIgnoredWarning(UserWarning):
    """The wiring puts norms inside its sub-layers, and a sub-layer does not support that."""


class WeightsNotInitializedWarning(UserWarning):
    """`init_weights` left weights unchanged because it does not know their role."""


class RolesGuessedWarning(UserWarning):
    """`init_weights` guessed the roles of weights of a plain module."""


class TableWarning(UserWarning):
    """Cells or columns of a table were read in a way that its owner should know."""


class MonitorWarning(UserWarning):
    """A monitor cannot measure something; training is not affected."""


def format_one_line(text: str) -> str:
    """Return a text as one printable line of bounded length.

    Line breaks become spaces, other unprintable characters are escaped, and the middle of a long
    text is left out.

    >>> format_one_line("tensor([[1.],\\n        [2.]])")
    'tensor([[1.], [2.]])'
    """
    text = re.sub(r"\s*[\n\r]\s*", " ", text)
    if len(text) > MAX_MESSAGE_LENGTH:
        half = MAX_MESSAGE_LENGTH // 2
        text = f"{text[:half]} ... {text[-half:]}"
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def closest_names(word: str, known: Iterable[str]) -> list[str]:
    """Return up to three known names similar to `word`, best first.

    Case, underscores, hyphens and spaces are ignored.

    >>> closest_names("PostLN", ["pre_ln", "post_ln", "b2t"])
    ['post_ln']
    """
    by_normalized = {_normalize_name(name): name for name in known}
    matches = difflib.get_close_matches(_normalize_name(word), by_normalized, n=3, cutoff=0.6)
    return [by_normalized[match] for match in matches]


def unknown_name_message(
    kind: str, value: str, known: Iterable[str], *, choices: str | None = None
) -> str:
    """Return the message for an unknown name: similar names first, then all known names.

    >>> unknown_name_message("norm", "rsm", ["layer", "rms"])
    "unknown norm 'rsm'; did you mean 'rms'? Expected one of layer, rms"

    Args:
        kind: what the name stands for
        value: the unknown name
        known: all known names
        choices: sentence about the known names, without a capital, in place of a long list
    """
    known, value = list(known), shorten_value(value)
    return suggest_names(
        f"unknown {kind} {value!r}",
        closest_names(value, known),
        choices or (f"expected one of {', '.join(known)}" if known else "expected none"),
    )


def suggest_names(problem: str, suggestions: Sequence[str], choices: str) -> str:
    """Return a problem, a question with the suggestions if there are any, and the choices."""
    if not suggestions:
        return f"{problem}; {choices}"
    names = " or ".join(map(repr, suggestions))
    return f"{problem}; did you mean {names}? {choices[0].upper()}{choices[1:]}"


def shorten_value(value: str) -> str:
    """Return the value, cut to at most 80 characters for use in a message."""
    return value if len(value) <= 80 else f"{value[:77]}..."


def _normalize_name(word: str) -> str:
    return re.sub(r"[\s_-]", "", word).lower()
