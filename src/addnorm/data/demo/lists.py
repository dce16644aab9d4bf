"""Lists of phrases of one kind: "Chile, Iceland, or Japan"."""

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
    """A few different phrases of a kind, joined as both locales join a list."""

    name: str
    kinds: tuple[tuple[PhraseKind, int], ...]
    """What is listed, and how often beside the others."""
    styles: tuple[str, ...]
    separators: tuple[frozenset[str], frozenset[str]]
    """What stands between items on each side; an item that has it inside is not listed."""

    @property
    def forms(self) -> tuple[str, ...]:
        """The styles, if there is anything to list."""
        return self.styles if self.kinds else ()

    def sample_phrase(self, rng: Random, pair: Pair) -> Phrase | None:
        """A list, or None if what was drawn does not make one."""
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
    """Lists of the kinds that have something to list, in the styles that both locales have."""
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
