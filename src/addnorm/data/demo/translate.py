"""Translation: the same dates, amounts and names, written in two locales by babel (CLDR)."""

import random
from collections import Counter
from typing import Any

import babel

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed
from addnorm.data.demo.datetimes import times
from addnorm.data.demo.lists import Listing, listing
from addnorm.data.demo.locales import locale_pair
from addnorm.data.demo.names import names, places
from addnorm.data.demo.numbers import amounts
from addnorm.data.demo.phrases import Kind, Pair, Phrase

SIZES = {"train": 20_000, "valid": 500, "test": 500}
SEEN = 10  # times that every form and name of a held-out phrase occurs in training, at least
TRIES = 5  # draws for each phrase wanted, before a kind counts as exhausted
FEWEST = 1000
SHARES = {"name": 4, "list": 10}  # of a kind, beside 1 of every other; lists mix them all
NAMED = {"territory": 4, "language": 3, "currency_name": 2, "month": 1, "weekday": 1}
LISTED = {"unit": 3, "currency": 2, "number": 1, "time": 1, "relative": 1, "date": 1}
LISTED |= {"interval": 1, "place": 1}


def make(
    seed: int, languages: tuple[str, str], *, sizes: dict[str, int] = SIZES
) -> tuple[dict[str, list[dict[str, str]]], dict[str, Any]]:
    """Pairs in which the target follows from the source, split by source.

    Held-out phrases are new combinations of forms and names that training has seen.
    """
    pair = locale_pair(*languages)
    phrases = _sure(_drawn(seed, pair, total=sum(sizes.values())), singles(pair))
    if len(phrases) < FEWEST:
        raise UserError(
            f"babel has too little in common for {pair[0]} and {pair[1]}: {len(phrases)} phrases,"
            f" wanted at least {FEWEST}; try other locales, say 'en' and 'de'"
        )
    random.Random(derive_seed(seed, "demo", "order")).shuffle(phrases)
    parts = split(phrases, valid=sizes["valid"], test=sizes["test"])
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


def kinds_of(pair: Pair) -> list[Kind | Listing]:
    """All kinds of phrases that both locales can write."""
    named = names(pair)
    simple = {kind.name: kind for kind in [*times(pair), *amounts(pair), places(pair)]}
    kinds: list[Kind | Listing] = [
        *simple.values(),
        listing("name", [(named[name], weight) for name, weight in NAMED.items()], pair),
        listing("list", [(simple[name], weight) for name, weight in LISTED.items()], pair),
    ]
    return [kind for kind in kinds if kind.forms]


def singles(pair: Pair) -> list[Phrase]:
    """Every name alone, as a dictionary has it."""
    found = []
    for kind in names(pair).values():
        for form in kind.forms:
            phrase = kind.write(form, None, pair)
            if phrase:
                alone = (*phrase.parts, f"alone {' '.join(form)}")  # once only: never held out
                found.append(Phrase(phrase.source, phrase.target, "single", alone))
    return found


def _drawn(seed: int, pair: Pair, *, total: int) -> dict[str, list[Phrase]]:
    """Phrases of every kind, in shares; what a kind cannot fill goes to the later ones."""
    kinds = kinds_of(pair)
    weights = [SHARES.get(kind.name, 1) for kind in kinds]
    drawn: dict[str, list[Phrase]] = {}
    for place, kind in enumerate(kinds):
        rng = random.Random(derive_seed(seed, "demo", "translate", kind.name))
        missing = total - sum(map(len, drawn.values()))
        share = missing * weights[place] // sum(weights[place:])
        found: dict[str, Phrase] = {}
        for _ in range(TRIES * share):
            phrase = kind.draw(rng, pair)
            if phrase:
                found.setdefault(phrase.source, phrase)
            if len(found) == share:
                break
        drawn[kind.name] = list(found.values())
    return drawn


def _sure(drawn: dict[str, list[Phrase]], alone: list[Phrase]) -> list[Phrase]:
    """All phrases, one for a source; a source with two targets goes."""
    targets: dict[str, set[str]] = {}
    first: dict[str, Phrase] = {}
    for phrase in (*alone, *(phrase for phrases in drawn.values() for phrase in phrases)):
        targets.setdefault(phrase.source, set()).add(phrase.target)
        first.setdefault(phrase.source, phrase)
    return [phrase for source, phrase in first.items() if len(targets[source]) == 1]


def split(phrases: list[Phrase], *, valid: int, test: int) -> dict[str, list[Phrase]]:
    """Train, valid and test; held out is only what is made of parts that training has seen."""
    most = len(phrases) // 20  # of a small corpus a smaller part
    wanted = {"valid": min(valid, most), "test": min(test, most)}
    left = Counter(part for phrase in phrases for part in set(phrase.parts))
    parts: dict[str, list[Phrase]] = {"train": [], "valid": [], "test": []}
    for phrase in phrases:
        own = set(phrase.parts)
        part = next((part for part in wanted if len(parts[part]) < wanted[part]), "train")
        if part != "train" and all(left[name] > SEEN for name in own):
            left.subtract(own)
        else:
            part = "train"
        parts[part].append(phrase)
    return parts
