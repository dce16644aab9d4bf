"""Numbers and sites as text: one format for all pages and charts."""

import math

from addnorm.core.rows import Row

MISSING = "—"
"""Table entry for a value that was not measured."""


def format_number(value: float | None, *, digits: int = 4, missing: str = "") -> str:
    """Return a number with `digits` significant digits, or `missing` if it is None or not finite.

    >>> format_number(0.123456), format_number(None), format_number(math.nan, missing="-")
    ('0.1235', '', '-')
    """
    if value is None or not math.isfinite(value):
        return missing
    return f"{value:.{digits}g}"


def round_significant(value: float, digits: int = 5) -> float:
    """Round a chart's value to `digits` significant digits, which keeps pages small.

    >>> round_significant(1.23456789)
    1.2346
    """
    return float(f"{value:.{digits}g}")


def site_label(row: Row) -> str:
    """Return the label of a site, or its layer and kind; empty if a row has none of them.

    >>> site_label({"site": 5, "layer": 1, "kind": "cross"})
    'layer 1, cross'
    """
    if row.get("label"):
        return str(row["label"])
    layer = f"layer {row['layer']}" if row.get("layer") is not None else ""
    return ", ".join(part for part in (layer, str(row.get("kind") or "")) if part)


def numbered_site(site: int, label: str) -> str:
    """Return a site's index with its label, as tooltips show it.

    >>> numbered_site(5, "layer 1, cross"), numbered_site(5, "")
    ('5: layer 1, cross', '5')
    """
    return f"{site}: {label}" if label else str(site)


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "arm"), plural(1200, "arm")
    ('1 arm', '1,200 arms')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
