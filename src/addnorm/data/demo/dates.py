"""Dates in two locales: a small translation corpus that deep stacks learn quickly.

All phrases have nearly the same length. Batches group rows of similar length, so a corpus of many
lengths makes a short training noisy; here all batches are alike.
"""

import random
from datetime import date, timedelta
from typing import Any

import babel
from babel.dates import format_date

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed
from addnorm.data.demo.locales import locale_pair

FIRST_DATE, NUM_DAYS = date(1950, 1, 1), 36_525  # a century
SPLIT_SIZES = {"valid": 200, "test": 200, "train": 5000}
SOURCE = "dates of a century, in the medium form of two locales, by babel (Unicode CLDR)"


def make_dates(
    seed: int = 0, languages: tuple[str, str] = ("en", "de")
) -> tuple[dict[str, list[dict[str, str]]], dict[str, Any]]:
    """Return records of train, valid and test without a common date, and facts for the card.

    >>> splits, about = make_dates()
    >>> splits["test"][0]
    {'source': 'Nov 5, 1970', 'target': '05.11.1970'}
    """
    pair = locale_pair(*languages)
    days = random.Random(derive_seed(seed, "demo", "dates")).sample(
        range(NUM_DAYS), sum(SPLIT_SIZES.values())
    )
    written = [
        [format_date(FIRST_DATE + timedelta(days=day), "medium", locale=locale) for locale in pair]
        for day in days
    ]
    records = iter([{"source": source, "target": target} for source, target in written])
    if all(source == target for source, target in written):
        raise UserError(
            f"languages: expected locales with different dates, got {pair[0]} and {pair[1]}; try "
            "'en' and 'de'"
        )
    splits = {part: [next(records) for _ in range(size)] for part, size in SPLIT_SIZES.items()}
    about = {
        "source": SOURCE,
        "seed": seed,
        "languages": [str(locale) for locale in pair],
        "babel": babel.__version__,
    }
    return splits, about
