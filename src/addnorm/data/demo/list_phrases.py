"""Phrases that are lists: "Chile, Iceland, or Japan"."""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from babel import Locale
from babel.lists import format_list

from addnorm.data.demo.phrases import Pair, Phrase, PhraseKind, normalize_spaces, unambiguous_forms

STYLES = ("standard", "or")
ITEM_COUNTS = (2, 3, 4, 4)  # items of a list


@dataclass(frozen=True)
class Listing:
    """Lists of a few different phrases of one kind, joined in the style of each locale."""

    name: str
    kinds: tuple[tuple[PhraseKind, int], ...]
    """Kinds of items with their weights."""
    styles: tuple[str, ...]
    separators: tuple[frozenset[str], frozenset[str]]
    """Separators of each locale; items that contain one are not listed."""

    @property
    def forms(self) -> tuple[str, ...]:
        """The list styles; empty without kinds of items."""
        return self.styles if self.kinds else ()

    def sample_phrase(self, rng: Random, pair: Pair) -> Phrase | None:
        """Draw a list; return None if the items are too few or ambiguous."""
        kinds, weights = zip(*self.kinds, strict=True)
        (kind,) = rng.choices(kinds, weights)
        alike = rng.choice(kind.forms)[-1]  # no list of "2 in or 5 acres"
        drawn = [kind.sample_phrase(rng, pair, style=alike) for _ in range(rng.choice(ITEM_COUNTS))]
        items = list({item.source: item for item in drawn if item}.values())
        if len(items) < 2 or not all(map(self._is_clear, items)):
            return None
        style = rng.choice(self.styles)
        source = normalize_spaces(_join(style, [item.source for item in items], pair[0]))
        target = normalize_spaces(_join(style, [item.target for item in items], pair[1]))
        parts = [part for item in items for part in item.parts]
        return Phrase(source, target, self.name, (f"list {style}", *parts))

    def _is_clear(self, item: Phrase) -> bool:
        sides = zip(self.separators, (item.source, item.target), strict=True)
        return not any(mark in text for marks, text in sides for mark in marks)


def build_listing(name: str, kinds: Iterable[tuple[PhraseKind, int]], pair: Pair) -> Listing:
    """Return lists of the kinds with forms, in the styles that both locales have."""
    styles = unambiguous_forms(
        pair,
        lambda form, count, locale: _join(form[0], ["x"] * count, locale),
        forms=[(style,) for style in STYLES],
        probes=ITEM_COUNTS,
    )
    listed = tuple((kind, weight) for kind, weight in kinds if kind.forms)
    chosen = tuple(style for (style,) in styles)
    return Listing(
        name, listed, chosen, (_find_separators(chosen, pair[0]), _find_separators(chosen, pair[1]))
    )


def _find_separators(styles: Iterable[str], locale: Locale) -> frozenset[str]:
    gap = "\0"
    lists = [_join(style, [gap] * count, locale) for style in styles for count in ITEM_COUNTS]
    return frozenset(mark for text in lists for mark in text.split(gap) if mark)


def _join(style: str, items: list[str], locale: Locale) -> str:
    if style not in locale.list_patterns:
        raise KeyError(style)  # babel would take another style in its place
    return format_list(items, style, locale)  # type: ignore[arg-type]
