"""Translation: the same dates, amounts and names, written in two locales by babel (CLDR)."""

import random
from collections import Counter
from typing import Any

import babel

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed
from addnorm.data.demo.datetimes import build_datetime_kinds
from addnorm.data.demo.lists import Listing, build_listing
from addnorm.data.demo.locales import locale_pair
from addnorm.data.demo.names import build_name_kinds, build_place_kind
from addnorm.data.demo.numbers import build_number_kinds
from addnorm.data.demo.phrases import Pair, Phrase, PhraseKind

SPLIT_SIZES = {"train": 20_000, "valid": 500, "test": 500}
MIN_TRAIN_OCCURRENCES = (
    10  # times that every form and name of a held-out phrase occurs in training, at least
)
TRIES_PER_PHRASE = 5  # draws for each phrase wanted, before a kind counts as exhausted
MIN_PHRASES = 1000
KIND_WEIGHTS = {"name": 4, "list": 10}  # of a kind, beside 1 of every other; lists mix them all
NAME_WEIGHTS = {"territory": 4, "language": 3, "currency_name": 2, "month": 1, "weekday": 1}
LIST_WEIGHTS = {"unit": 3, "currency": 2, "number": 1, "time": 1, "relative": 1, "date": 1}
LIST_WEIGHTS |= {"interval": 1, "place": 1}


def make(
    seed: int, languages: tuple[str, str], *, sizes: dict[str, int] = SPLIT_SIZES
) -> tuple[dict[str, list[dict[str, str]]], dict[str, Any]]:
    """Pairs in which the target follows from the source, split by source.

    Held-out phrases are new combinations of forms and names that training has seen.
    """
    pair = locale_pair(*languages)
    phrases = _drop_ambiguous(
        _sample_phrases(seed, pair, total=sum(sizes.values())), name_pairs(pair)
    )
    if len(phrases) < MIN_PHRASES:
        raise UserError(
            f"babel has too little in common for {pair[0]} and {pair[1]}: {len(phrases)} phrases,"
            f" wanted at least {MIN_PHRASES}; try other locales, say 'en' and 'de'"
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
    """All kinds of phrases that both locales can write."""
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
    """Every name alone, as a dictionary has it."""
    found = []
    for kind in build_name_kinds(pair).values():
        for form in kind.forms:
            phrase = kind.render_phrase(form, None, pair)
            if phrase:
                alone = (*phrase.parts, f"alone {' '.join(form)}")  # once only: never held out
                found.append(Phrase(phrase.source, phrase.target, "single", alone))
    return found


def _sample_phrases(seed: int, pair: Pair, *, total: int) -> dict[str, list[Phrase]]:
    """Phrases of every kind, in shares; what a kind cannot fill goes to the later ones."""
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
    """All phrases, one for a source; a source with two targets goes."""
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
    """Train, valid and test; held out is only what is made of parts that training has seen."""
    most = len(phrases) // 20  # of a small corpus a smaller part
    wanted = {"valid": min(valid, most), "test": min(test, most)}
    left = Counter(part for phrase in phrases for part in set(phrase.parts))
    parts: dict[str, list[Phrase]] = {"train": [], "valid": [], "test": []}
    for phrase in phrases:
        own = set(phrase.parts)
        part = next((part for part in wanted if len(parts[part]) < wanted[part]), "train")
        if part != "train" and all(left[name] > MIN_TRAIN_OCCURRENCES for name in own):
            left.subtract(own)
        else:
            part = "train"
        parts[part].append(phrase)
    return parts
