"""Saving of Altair charts."""

from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.files import atomic_write

SUFFIXES = (".svg", ".png", ".html", ".json")


def save_chart(chart: Any, path: str | Path) -> Path:
    """Write an Altair chart atomically; an .html file is self-contained.

    Args:
        chart: Altair chart
        path: file whose suffix names the format, one of `SUFFIXES`
    """
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"path: expected a file name that ends in {', '.join(SUFFIXES)}, got {path}"
        )
    options = {"inline": True} if path.suffix.lower() == ".html" else {}
    with atomic_write(path) as name:
        chart.save(str(name), format=path.suffix.lower()[1:], **options)
    return path
