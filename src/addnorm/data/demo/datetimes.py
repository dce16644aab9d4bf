"""Dates, times, intervals and relative times."""

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

from addnorm.data.demo.phrases import Form, Kind, Pair, agreeing

FIRST, YEARS = 1950, 100  # a century, so that a year of two digits is sure
LENGTHS = ("full", "long", "medium", "short")
SKELETONS = ("yMMMM", "yMMMEd", "MMMMd", "yMd", "yMMMd", "yMEd", "yMMM", "MMMd", "MMMEd", "yQQQQ")
SPANS = ("yMMMd", "yMMMEd", "yMMMM", "MMMd", "yMd", "yMEd")
SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
SECONDS |= {"month": 2592000, "year": 31536000}  # as babel counts them
FIELDS = {"L": "M", "c": "E", "e": "E", "q": "Q", "K": "H", "k": "H", "h": "H"}
ALIKE = frozenset("abBG")  # parts of the day and the era follow from the rest


def times(pair: Pair) -> list[Kind]:
    """Kinds of phrases that speak of time; one that a locale cannot say has no forms."""
    days = [datetime(year, month, day, 15, 5, 7) for year in (1987, 2024)
            for month in range(1, 13) for day in (1, 28)]  # fmt: skip
    hours = [datetime(2024, 5, day, hour, minute, 7) for day in (6, 7)
             for hour in range(24) for minute in (0, 5)]  # fmt: skip
    spans = [(day, day + timedelta(days=n)) for day in days[::3] for n in (2, 45, 500)]
    clocks = [(day, day + timedelta(hours=n)) for day in hours for n in (1, 7)]
    date_forms = [("length", length) for length in LENGTHS]
    date_forms += [("skeleton", skeleton) for skeleton in SKELETONS]
    dates = agreeing(
        pair,
        _date,
        forms=[form for form in date_forms if _same_fields(pair, form)],
        probes=days,
    )
    clock = agreeing(pair, _time, forms=[("short",), ("medium",), ("day_short",)], probes=hours)
    joined = [(*date, *time) for date in dates if date[0] == "length" for time in clock[:2]]
    joined = agreeing(pair, _moment, forms=joined, probes=days)
    between = agreeing(pair, _span, forms=[(name,) for name in SPANS], probes=spans)
    hourly = agreeing(pair, _span, forms=[("hm",)], probes=clocks)
    ago = agreeing(
        pair,
        _relative,
        forms=[(unit, length) for length in ("long", "short") for unit in SECONDS],
        probes=[n for n in range(-30, 31) if n],
    )
    return [
        Kind("date", dates, _date, _moment_of, _day_parts),
        Kind("time", clock, _time, _moment_of, _day_parts),
        Kind("datetime", joined, _moment, _moment_of, _day_parts),
        Kind("interval", between + hourly, _span, _span_of, _span_parts),
        Kind("relative", ago, _relative, _steps),
    ]


def _same_fields(pair: Pair, form: Form) -> bool:
    """Both sides tell the same: a weekday that the source leaves out would be arithmetic."""
    one, two = (_fields(_pattern(form, locale)) for locale in pair)
    return one == two and bool(one)


def _pattern(form: Form, locale: Locale) -> str:
    if form[0] == "length":
        return get_date_format(form[1], locale).pattern  # type: ignore[arg-type]
    found = locale.datetime_skeletons.get(form[1])
    return found.pattern if found else ""


def _fields(pattern: str) -> set[str]:
    letters = {str(value[0]) for kind, value in tokenize_pattern(pattern) if kind == "field"}
    return {FIELDS.get(letter, letter) for letter in letters - ALIKE}


def _date(form: Form, value: datetime, locale: Locale) -> str:
    if form[0] == "length":
        return format_date(value, form[1], locale)
    return format_skeleton(form[1], value, fuzzy=False, locale=locale)


def _time(form: Form, value: datetime, locale: Locale) -> str:
    if form[0] == "day_short":
        return format_skeleton(f"E{_clock(locale)}", value, fuzzy=False, locale=locale)
    return format_time(value, form[0], locale=locale)


def _moment(form: Form, value: datetime, locale: Locale) -> str:
    joint = str(get_datetime_format("medium", locale=locale)).replace("'", "")
    day, time = _date(form[:2], value, locale), _time(form[2:], value, locale)
    return joint.replace("{1}", day).replace("{0}", time)


def _span(form: Form, value: tuple[datetime, datetime], locale: Locale) -> str:
    skeleton = _clock(locale) if form[0] == "hm" else form[0]
    if skeleton not in locale.interval_formats:
        raise KeyError(skeleton)  # babel would write something else in its place
    return format_interval(*value, skeleton, fuzzy=False, locale=locale)


def _clock(locale: Locale) -> str:
    """The clock that people of the locale read: 12 hours or 24."""
    return "hm" if _is_12(get_time_format("short", locale).pattern) else "Hm"


def _is_12(pattern: str) -> bool:
    return any(
        kind == "field" and value[0] in ("h", "K") for kind, value in tokenize_pattern(pattern)
    )


def _relative(form: Form, value: int, locale: Locale) -> str:
    delta = timedelta(seconds=value * SECONDS[form[0]])
    return format_timedelta(
        delta,
        granularity=form[0],  # type: ignore[arg-type]
        threshold=float("inf"),  # never a larger unit
        add_direction=True,
        format=form[1],  # type: ignore[arg-type]
        locale=locale,
    )


def _moment_of(rng: Random, form: Form) -> datetime:
    start = datetime(FIRST + rng.randrange(YEARS), 1, 1)
    minute = rng.choice([0, 15, 30, 45, rng.randrange(60)])
    return start + timedelta(
        days=rng.randrange(365), hours=rng.randrange(24), minutes=minute, seconds=rng.randrange(60)
    )


def _span_of(rng: Random, form: Form) -> tuple[datetime, datetime]:
    start = _moment_of(rng, form)
    if form[0] == "hm":
        end = start.replace(hour=rng.randrange(24), minute=rng.choice([0, 15, 30, 45]), second=0)
        first, last = sorted((start.replace(second=0), end))
        return first, last if first != last else last + timedelta(minutes=1)
    if form[0] == "yMMMM":
        return start, start + timedelta(days=rng.randrange(31, 700))
    return start, start + timedelta(days=rng.choice([rng.randrange(1, 15), rng.randrange(15, 200)]))


def _steps(rng: Random, form: Form) -> int:
    return rng.choice([-1, 1]) * rng.randrange(1, 100)


def _day_parts(form: Form, value: datetime) -> Iterable[str]:
    return (f"month {value.month} {form[-1]}", f"weekday {value.weekday()}")


def _span_parts(form: Form, value: tuple[Any, Any]) -> Iterable[str]:
    return () if form[0] == "hm" else [f"{form[0]} {moment.month}" for moment in value]
