"""Phrases with numbers: counts, percentages, money and measures."""

from collections.abc import Iterable
from decimal import Decimal
from random import Random
from typing import Any, Literal, cast

from babel import Locale
from babel.numbers import (
    format_compact_currency,
    format_compact_decimal,
    format_currency,
    format_decimal,
    format_percent,
    format_scientific,
    get_currency_precision,
)
from babel.units import format_compound_unit, format_unit

from addnorm.data.demo.phrases import Form, Pair, PhraseKind, unambiguous_forms

CURRENCIES = (
    "USD EUR GBP JPY CNY INR CHF CAD AUD NZD SEK NOK DKK PLN CZK HUF RUB TRY BRL MXN KRW ZAR ILS"
    " THB EGP"
)
CURRENCY_CODES = CURRENCIES.split()
UNITS_BY_QUANTITY = {
    "length": "kilometer meter centimeter millimeter mile yard foot inch light-year",
    "area": "square-kilometer square-meter hectare acre",
    "mass": "kilogram gram milligram tonne pound ounce",
    "volume": "liter milliliter cubic-meter gallon teaspoon tablespoon",
    "duration": "year month week day hour minute second millisecond",
    "temperature": "celsius fahrenheit",
    "digital": "byte kilobyte megabyte gigabyte",
    "power": "watt kilowatt",
    "electric": "volt ampere",
    "energy": "kilowatt-hour kilocalorie",
    "frequency": "hertz megahertz",
    "angle": "degree",
    "graphics": "pixel",
}
UNITS = [f"{group}-{name}" for group, names in UNITS_BY_QUANTITY.items() for name in names.split()]
RATE_UNITS = ("length-kilometer", "length-meter", "volume-liter", "mass-gram", "digital-megabyte")
RATE_DURATIONS = ("duration-second", "duration-minute", "duration-hour", "duration-day")
RATES = [(measure, span) for measure in RATE_UNITS for span in RATE_DURATIONS]
PLURAL_PROBES = (
    2,
    3,
    5,
    11,
    21,
    100,
    Decimal("2.5"),
)  # one of each plural that languages tell apart
ROUND_NUMBERS = [Decimal(m * 10**k) for k in range(3, 11) for m in (2, 10, 12, 35)]


def build_number_kinds(pair: Pair) -> list[PhraseKind]:
    """Return the kinds of phrases with numbers; a kind without data in a locale has no forms."""
    numbers = unambiguous_forms(
        pair,
        _format_number,
        forms=[("decimal",), ("percent",), ("long",), ("short",), ("scientific",)],
        probes=ROUND_NUMBERS,
    )
    money = unambiguous_forms(
        pair,
        _format_money,
        forms=[(code, style) for style in ("name", "symbol", "compact") for code in CURRENCY_CODES],
        probes=[*PLURAL_PROBES[:4], *ROUND_NUMBERS[::5]],
    )
    measured = [(name, length) for length in ("long", "short") for name in UNITS]
    measures = unambiguous_forms(
        pair,
        _format_measure,
        forms=[*measured, *((*rate, "long") for rate in RATES)],
        probes=PLURAL_PROBES,
    )
    return [
        PhraseKind("number", numbers, _format_number, _sample_number),
        PhraseKind("currency", money, _format_money, _sample_money, _plural_parts),
        PhraseKind("unit", measures, _format_measure, _sample_measure, _plural_parts),
    ]


def _format_number(form: Form, value: Decimal, locale: Locale) -> str:
    match form[0]:
        case "decimal":
            return format_decimal(value, locale=locale)
        case "percent":
            return format_percent(value / 100, locale=locale, decimal_quantization=False)
        case "scientific":
            return format_scientific(value, locale=locale)
        case length:
            return format_compact_decimal(
                value,
                format_type=length,  # type: ignore[arg-type]
                locale=locale,
                fraction_digits=1,
            )


def _format_money(form: Form, value: Decimal, locale: Locale) -> str:
    code, style = form
    if style == "compact":
        return format_compact_currency(value, code, locale=locale, fraction_digits=1)
    if style == "name":
        return format_currency(
            value, code, locale=locale, format_type="name", currency_digits=False
        )
    return format_currency(value, code, locale=locale)


def _format_measure(form: Form, value: Decimal, locale: Locale) -> str:
    *names, last = form
    length = cast(Literal["long", "short"], last)
    if len(names) == 1:
        text = format_unit(value, names[0], length=length, locale=locale)
    else:
        one, per = names
        rate = format_compound_unit(value, one, denominator_unit=per, length=length, locale=locale)
        text = rate or ""
    if any(name in text for name in names):
        raise KeyError(names[0])  # babel writes its own name of a unit that the locale lacks
    return text


def _sample_number(rng: Random, form: Form) -> Decimal:
    match form[0]:
        case "decimal":
            return rng.choice([_sample_integer(rng, 6), _sample_decimal(rng, 100_000, places=2)])
        case "percent":
            return rng.choice(
                [Decimal(rng.randrange(1, 200)), _sample_decimal(rng, 1000, places=1)]
            )
        case "scientific":
            return Decimal(rng.randrange(101, 1000)).scaleb(rng.randrange(-6, 10))
        case _:
            return _sample_round_number(rng)


def _sample_money(rng: Random, form: Form) -> Decimal:
    if form[1] == "compact":
        return _sample_round_number(rng)
    if form[1] == "name" or not get_currency_precision(form[0]):
        return _sample_integer(rng, 5) + 1
    return Decimal(rng.randrange(200, 10 ** rng.randrange(3, 7))).scaleb(-2)


def _sample_measure(rng: Random, form: Form) -> Decimal:
    return rng.choice(
        [
            Decimal(rng.randrange(1, 100)),
            _sample_integer(rng, 4),
            _sample_decimal(rng, 1000, places=1),
        ]
    )


def _sample_integer(rng: Random, digits: int) -> Decimal:
    """Draw an integer whose number of digits is uniform."""
    return Decimal(rng.randrange(1, 10 ** rng.randrange(1, digits + 1)))


def _sample_decimal(rng: Random, stop: int, *, places: int) -> Decimal:
    """Draw a decimal below `stop`, without trailing zeros, which affect plurals in some locales."""
    value = Decimal(rng.randrange(1, stop)).scaleb(-places)
    return value.normalize() if value % 1 else Decimal(int(value))


def _sample_round_number(rng: Random) -> Decimal:
    """Draw two digits followed by zeros, which compact formats of all locales write exactly."""
    return Decimal(rng.randrange(10, 100) * 10 ** rng.randrange(2, 11))


def _plural_parts(form: Form, value: Any) -> Iterable[str]:
    """Return the singular form as a part of its own, since it differs from the plural."""
    return [f"one {' '.join(form)}"] if value == 1 else ()
