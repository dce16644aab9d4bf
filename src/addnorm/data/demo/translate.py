"""Translation demo: dates, amounts and names, formatted in two locales by babel (CLDR)."""

import random
from collections import Counter
from typing import Any

import babel

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed
from addnorm.data.demo.datetimes import build_datetime_kinds
from addnorm.data.demo.list_phrases import Listing, build_listing
from addnorm.data.demo.locales import locale_pair
from addnorm.data.demo.name_phrases import build_name_kinds, build_place_kind
from addnorm.data.demo.numbers import build_number_kinds
from addnorm.data.demo.phrases import Pair, Phrase, PhraseKind

SPLIT_SIZES = {"train": 20_000, "valid": 500, "test": 500}
MIN_TRAIN_OCCURRENCES = 10
"""Occurrences in training of each form and name of a held-out phrase, at least."""
TRIES_PER_PHRASE = 5
"""Draws per phrase before a kind counts as exhausted."""
MIN_PHRASES = 1000
KIND_WEIGHTS = {"name": 4, "list": 10}
"""Relative frequency of a kind; 1 for all others."""
NAME_WEIGHTS = {"territory": 4, "language": 3, "currency_name": 2, "month": 1, "weekday": 1}
LIST_WEIGHTS = {"unit": 3, "currency": 2, "number": 1, "time": 1, "relative": 1, "date": 1}
LIST_WEIGHTS |= {"interval": 1, "place": 1}


def make(
    seed: int, languages: tuple[str, str], *, sizes: dict[str, int] = SPLIT_SIZES
) -> tuple[dict[str, list[dict[str, str]]], dict[str, Any]]:
    """Return pairs whose target is determined by the source, split by source.

    Held-out phrases are new combinations of forms and names that occur in training.

    Args:
        seed: seed of the selection
        languages: two locales of babel
        sizes: records of each split
    """
    pair = locale_pair(*languages)
    phrases = _drop_ambiguous(
        _sample_phrases(seed, pair, total=sum(sizes.values())), name_pairs(pair)
    )
    if len(phrases) < MIN_PHRASES:
        raise UserError(
            f"languages: expected locales with at least {MIN_PHRASES} common phrases, got "
            f"{len(phrases)} for {pair[0]} and {pair[1]}; try 'en' and 'de'"
        )
    random.Random(derive_seed(seed, "demo", "order")).shuffle(phrases)
    parts = split_phrases(phrases, valid=sizes["valid"], test=sizes["test"])
    kinds = sorted({phrase.kind for phrase in phrases})
    about = {
        "languages": [str(locale) for locale in pair],
        "babel": babel.__version__,
        "phrases": {
            kind: {part: sum(p.kind == kind for p in chosen) for part, chosen in parts.items()}
            for kind in kinds
        },
    }
    splits = {
        part: [{"source": p.source, "target": p.target} for p in chosen]
        for part, chosen in parts.items()
    }
    return splits, about


def build_phrase_kinds(pair: Pair) -> list[PhraseKind | Listing]:
    """Return the kinds of phrases that both locales can format."""
    named = build_name_kinds(pair)
    simple = {
        kind.name: kind
        for kind in [*build_datetime_kinds(pair), *build_number_kinds(pair), build_place_kind(pair)]
    }
    kinds: list[PhraseKind | Listing] = [
        *simple.values(),
        build_listing(
            "name", [(named[name], weight) for name, weight in NAME_WEIGHTS.items()], pair
        ),
        build_listing(
            "list", [(simple[name], weight) for name, weight in LIST_WEIGHTS.items()], pair
        ),
    ]
    return [kind for kind in kinds if kind.forms]


def name_pairs(pair: Pair) -> list[Phrase]:
    """Return every name as a phrase of its own, like a dictionary entry."""
    phrases = []
    for kind in build_name_kinds(pair).values():
        for form in kind.forms:
            phrase = kind.render_phrase(form, None, pair)
            if phrase:
                parts = (*phrase.parts, f"alone {' '.join(form)}")  # unique, so never held out
                phrases.append(Phrase(phrase.source, phrase.target, "single", parts))
    return phrases


def _sample_phrases(seed: int, pair: Pair, *, total: int) -> dict[str, list[Phrase]]:
    """Draw phrases of every kind by weight; later kinds take what an exhausted kind leaves."""
    kinds = build_phrase_kinds(pair)
    weights = [KIND_WEIGHTS.get(kind.name, 1) for kind in kinds]
    drawn: dict[str, list[Phrase]] = {}
    for place, kind in enumerate(kinds):
        rng = random.Random(derive_seed(seed, "demo", "translate", kind.name))
        missing = total - sum(map(len, drawn.values()))
        share = missing * weights[place] // sum(weights[place:])
        found: dict[str, Phrase] = {}
        for _ in range(TRIES_PER_PHRASE * share):
            phrase = kind.sample_phrase(rng, pair)
            if phrase:
                found.setdefault(phrase.source, phrase)
            if len(found) == share:
                break
        drawn[kind.name] = list(found.values())
    return drawn


def _drop_ambiguous(
    phrases_by_kind: dict[str, list[Phrase]], name_phrases: list[Phrase]
) -> list[Phrase]:
    """Return one phrase per source; sources with two targets are dropped."""
    targets: dict[str, set[str]] = {}
    first: dict[str, Phrase] = {}
    for phrase in (
        *name_phrases,
        *(phrase for phrases in phrases_by_kind.values() for phrase in phrases),
    ):
        targets.setdefault(phrase.source, set()).add(phrase.target)
        first.setdefault(phrase.source, phrase)
    return [phrase for source, phrase in first.items() if len(targets[source]) == 1]


def split_phrases(phrases: list[Phrase], *, valid: int, test: int) -> dict[str, list[Phrase]]:
    """Split phrases; only phrases whose parts occur in training are held out."""
    limit = len(phrases) // 20  # small corpora hold out less
    sizes = {"valid": min(valid, limit), "test": min(test, limit)}
    left = Counter(part for phrase in phrases for part in set(phrase.parts))
    parts: dict[str, list[Phrase]] = {"train": [], "valid": [], "test": []}
    for phrase in phrases:
        own = set(phrase.parts)
        part = next((part for part in sizes if len(parts[part]) < sizes[part]), "train")
        if part != "train" and all(left[name] > MIN_TRAIN_OCCURRENCES for name in own):
            left.subtract(own)
        else:
            part = "train"
        parts[part].append(phrase)
    return parts
