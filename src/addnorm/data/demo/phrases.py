"""Phrases: one value, formatted in two locales, kept only if the translation is unambiguous."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from babel import Locale
from babel.core import UnknownLocaleError
from babel.units import UnknownUnitError

Pair = tuple[Locale, Locale]
Form = tuple[str, ...]
"""Format of a value in babel's terms: ("skeleton", "yMMMd"), ("EUR", "name"), ..."""
Render = Callable[[Form, Any, Locale], str]

# babel lacks data that CLDR's locales inherit by alias, and then fails in one of these ways.
MISSING_DATA_ERRORS = (LookupError, AttributeError, TypeError, UnknownUnitError, UnknownLocaleError)


@dataclass(frozen=True)
class Phrase:
    """A sentence pair of the corpus."""

    source: str
    target: str
    kind: str
    parts: tuple[str, ...]
    """Forms and names that a model must know to translate it."""


@dataclass(frozen=True)
class PhraseKind:
    """A kind of phrases: a form is chosen, a value drawn, and both locales format it."""

    name: str
    forms: Sequence[Form]
    render: Render
    sample: Callable[[Random, Form], Any] = lambda rng, form: None
    parts: Callable[[Form, Any], Iterable[str]] = lambda form, value: ()

    def sample_phrase(self, rng: Random, pair: Pair, *, style: str | None = None) -> Phrase | None:
        """Draw a phrase, of forms that end with `style` if given; None if it has no format."""
        forms = self.forms if style is None else [f for f in self.forms if f[-1] == style]
        form = rng.choice(forms)
        return self.render_phrase(form, self.sample(rng, form), pair)

    def render_phrase(self, form: Form, value: Any, pair: Pair) -> Phrase | None:
        """Return the phrase of a value; None if a locale has no data for it."""
        text = render_pair(pair, self.render, form, value)
        if text is None:
            return None
        parts = (f"{self.name} {' '.join(form)}", *self.parts(form, value))
        return Phrase(*text, self.name, parts)


def render_pair(pair: Pair, render: Render, form: Form, value: Any) -> tuple[str, str] | None:
    """Format a value in both locales; return None if a locale has no data for it."""
    try:
        source, target = (normalize_spaces(render(form, value, locale)) for locale in pair)
    except MISSING_DATA_ERRORS:
        return None
    return (source, target) if source and target else None


def normalize_spaces(text: str) -> str:
    """Replace runs of white space, such as the thin and no-break spaces of CLDR, by one space.

    >>> normalize_spaces("3:05\\u202fPM\\u2009–\\u20096:05\\u202fPM")
    '3:05 PM – 6:05 PM'
    """
    return re.sub(r"\s+", " ", text).strip()


def unambiguous_forms(
    pair: Pair, render: Render, *, forms: Iterable[Form], probes: Sequence[Any]
) -> list[Form]:
    """Return the forms whose target is determined by the source, tested on all probes, in order.

    A form goes if a locale lacks it, if two values look the same in the source but not in the
    target, or if it contradicts a form before it: "May 5" is long and short at once, "5 de mayo"
    is not.
    """
    kept: list[Form] = []
    seen: dict[str, str] = {}
    for form in forms:
        table: dict[str, str] = {}
        for probe in probes:
            text = render_pair(pair, render, form, probe)
            if text is None:
                break
            source, target = text
            if seen.get(source, target) != target or table.setdefault(source, target) != target:
                break
        else:
            kept.append(form)
            seen.update(table)
    return kept
