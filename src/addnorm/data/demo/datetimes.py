"""Phrases with dates, times, intervals and relative times."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from random import Random
from typing import Any

from babel import Locale
from babel.dates import (
    format_date,
    format_interval,
    format_skeleton,
    format_time,
    format_timedelta,
    get_date_format,
    get_datetime_format,
    get_time_format,
    tokenize_pattern,
)

from addnorm.data.demo.phrases import Form, Pair, PhraseKind, unambiguous_forms

FIRST_YEAR, NUM_YEARS = 1950, 100  # a century, so that a year of two digits is sure
LENGTHS = ("full", "long", "medium", "short")
SKELETONS = ("yMMMM", "yMMMEd", "MMMMd", "yMd", "yMMMd", "yMEd", "yMMM", "MMMd", "MMMEd", "yQQQQ")
INTERVAL_SKELETONS = ("yMMMd", "yMMMEd", "yMMMM", "MMMd", "yMd", "yMEd")
UNIT_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
UNIT_SECONDS |= {"month": 2592000, "year": 31536000}  # as babel counts them
FIELD_ALIASES = {"L": "M", "c": "E", "e": "E", "q": "Q", "K": "H", "k": "H", "h": "H"}
IGNORED_FIELDS = frozenset("abBG")  # parts of the day and the era follow from the rest


def build_datetime_kinds(pair: Pair) -> list[PhraseKind]:
    """Return the kinds of phrases about time; a kind without data in a locale has no forms."""
    days = [datetime(year, month, day, 15, 5, 7) for year in (1987, 2024)
            for month in range(1, 13) for day in (1, 28)]  # fmt: skip
    hours = [datetime(2024, 5, day, hour, minute, 7) for day in (6, 7)
             for hour in range(24) for minute in (0, 5)]  # fmt: skip
    spans = [(day, day + timedelta(days=n)) for day in days[::3] for n in (2, 45, 500)]
    clocks = [(day, day + timedelta(hours=n)) for day in hours for n in (1, 7)]
    date_forms = [("length", length) for length in LENGTHS]
    date_forms += [("skeleton", skeleton) for skeleton in SKELETONS]
    dates = unambiguous_forms(
        pair,
        _format_date,
        forms=[form for form in date_forms if _has_same_fields(pair, form)],
        probes=days,
    )
    clock = unambiguous_forms(
        pair, _format_time, forms=[("short",), ("medium",), ("day_short",)], probes=hours
    )
    joined = [(*date, *time) for date in dates if date[0] == "length" for time in clock[:2]]
    joined = unambiguous_forms(pair, _format_datetime, forms=joined, probes=days)
    between = unambiguous_forms(
        pair, _format_interval, forms=[(name,) for name in INTERVAL_SKELETONS], probes=spans
    )
    hourly = unambiguous_forms(pair, _format_interval, forms=[("hm",)], probes=clocks)
    ago = unambiguous_forms(
        pair,
        _format_relative,
        forms=[(unit, length) for length in ("long", "short") for unit in UNIT_SECONDS],
        probes=[n for n in range(-30, 31) if n],
    )
    return [
        PhraseKind("date", dates, _format_date, _sample_datetime, _day_parts),
        PhraseKind("time", clock, _format_time, _sample_datetime, _day_parts),
        PhraseKind("datetime", joined, _format_datetime, _sample_datetime, _day_parts),
        PhraseKind(
            "interval", between + hourly, _format_interval, _sample_interval, _interval_parts
        ),
        PhraseKind("relative", ago, _format_relative, _sample_offset),
    ]


def _has_same_fields(pair: Pair, form: Form) -> bool:
    """Return whether both sides have equal fields; a missing weekday would need arithmetic."""
    one, two = (_pattern_fields(_date_pattern(form, locale)) for locale in pair)
    return one == two and bool(one)


def _date_pattern(form: Form, locale: Locale) -> str:
    if form[0] == "length":
        return get_date_format(form[1], locale).pattern  # type: ignore[arg-type]
    found = locale.datetime_skeletons.get(form[1])
    return found.pattern if found else ""


def _pattern_fields(pattern: str) -> set[str]:
    letters = {str(value[0]) for kind, value in tokenize_pattern(pattern) if kind == "field"}
    return {FIELD_ALIASES.get(letter, letter) for letter in letters - IGNORED_FIELDS}


def _format_date(form: Form, value: datetime, locale: Locale) -> str:
    if form[0] == "length":
        return format_date(value, form[1], locale)
    return format_skeleton(form[1], value, fuzzy=False, locale=locale)


def _format_time(form: Form, value: datetime, locale: Locale) -> str:
    if form[0] == "day_short":
        return format_skeleton(f"E{_clock_skeleton(locale)}", value, fuzzy=False, locale=locale)
    return format_time(value, form[0], locale=locale)


def _format_datetime(form: Form, value: datetime, locale: Locale) -> str:
    joint = str(get_datetime_format("medium", locale=locale)).replace("'", "")
    day, time = _format_date(form[:2], value, locale), _format_time(form[2:], value, locale)
    return joint.replace("{1}", day).replace("{0}", time)


def _format_interval(form: Form, value: tuple[datetime, datetime], locale: Locale) -> str:
    skeleton = _clock_skeleton(locale) if form[0] == "hm" else form[0]
    if skeleton not in locale.interval_formats:
        raise KeyError(skeleton)  # babel would write something else in its place
    return format_interval(*value, skeleton, fuzzy=False, locale=locale)


def _clock_skeleton(locale: Locale) -> str:
    """Return the skeleton of the locale's clock, 12 or 24 hours."""
    return "hm" if _is_12_hour(get_time_format("short", locale).pattern) else "Hm"


def _is_12_hour(pattern: str) -> bool:
    return any(
        kind == "field" and value[0] in ("h", "K") for kind, value in tokenize_pattern(pattern)
    )


def _format_relative(form: Form, value: int, locale: Locale) -> str:
    delta = timedelta(seconds=value * UNIT_SECONDS[form[0]])
    return format_timedelta(
        delta,
        granularity=form[0],  # type: ignore[arg-type]
        threshold=float("inf"),  # never a larger unit
        add_direction=True,
        format=form[1],  # type: ignore[arg-type]
        locale=locale,
    )


def _sample_datetime(rng: Random, form: Form) -> datetime:
    start = datetime(FIRST_YEAR + rng.randrange(NUM_YEARS), 1, 1)
    minute = rng.choice([0, 15, 30, 45, rng.randrange(60)])
    return start + timedelta(
        days=rng.randrange(365), hours=rng.randrange(24), minutes=minute, seconds=rng.randrange(60)
    )


def _sample_interval(rng: Random, form: Form) -> tuple[datetime, datetime]:
    start = _sample_datetime(rng, form)
    if form[0] == "hm":
        end = start.replace(hour=rng.randrange(24), minute=rng.choice([0, 15, 30, 45]), second=0)
        first, last = sorted((start.replace(second=0), end))
        return first, last if first != last else last + timedelta(minutes=1)
    if form[0] == "yMMMM":
        return start, start + timedelta(days=rng.randrange(31, 700))
    return start, start + timedelta(days=rng.choice([rng.randrange(1, 15), rng.randrange(15, 200)]))


def _sample_offset(rng: Random, form: Form) -> int:
    return rng.choice([-1, 1]) * rng.randrange(1, 100)


def _day_parts(form: Form, value: datetime) -> Iterable[str]:
    return (f"month {value.month} {form[-1]}", f"weekday {value.weekday()}")


def _interval_parts(form: Form, value: tuple[Any, Any]) -> Iterable[str]:
    return () if form[0] == "hm" else [f"{form[0]} {moment.month}" for moment in value]
