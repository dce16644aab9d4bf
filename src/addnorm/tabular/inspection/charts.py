"""Charts as files."""

from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.files import atomic_write

SUFFIXES = (".svg", ".png", ".html", ".json")


def save_chart(chart: Any, path: str | Path) -> Path:
    """Write an altair chart whole or not at all; an html file fetches nothing."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            f"{path}: the name does not tell the format; wanted one that ends in "
            f"{', '.join(SUFFIXES)}"
        )
    options = {"inline": True} if path.suffix.lower() == ".html" else {}
    with atomic_write(path) as name:
        chart.save(str(name), format=path.suffix.lower()[1:], **options)
    return path
