"""Sphinx extension: docstrings of addnorm as reStructuredText.

Docstrings are written for readers of the source. Paragraphs are plain text with code in backticks;
classes of the catalogue state their formula in a paragraph of its own, and each symbol on a line
`symbol: shape and start value`. In reStructuredText the same characters would be emphasis,
substitutions and references, so they are escaped; formulas become literal blocks and symbols a
list. Sections such as `Args:` and doctests are left to napoleon and Sphinx.
"""

import re
from typing import Any

from sphinx.application import Sphinx

SECTION = re.compile(r"(Args|Returns|Raises|Yields|Attributes|Example|Examples|Note):$")
SYMBOL = re.compile(r"[\w(][\w(),.*= /|'-]*: +\S")
UNDERLINE = re.compile(r"-{4,}")
FORMULA = re.compile(r"(<-| = |^[\w()., ]+->)")


def convert_docstring(lines: list[str]) -> list[str]:
    """Return the lines of a docstring as reStructuredText.

    >>> convert_docstring(["Scale by *g*.", "", "y = g * x", "", "g: (dim), starts at 1"])
    ['Scale by \\\\*g\\\\*.', '', '::', '', '    y = g * x', '', '- ``g``: (dim), starts at 1']
    """
    if any(UNDERLINE.fullmatch(line.strip()) for line in lines):  # estimators: numpydoc form
        return [escape(line) for line in lines]
    result: list[str] = []
    in_section = False
    for paragraph in split_paragraphs(lines):
        in_section = bool(SECTION.match(paragraph[0])) or (
            in_section and paragraph[0].startswith(" ")
        )
        if result:
            result.append("")
        if paragraph[0].lstrip().startswith(">>>"):
            result += paragraph
        elif in_section:
            result += map(escape, paragraph)
        elif all(SYMBOL.match(line) or line.startswith("    ") for line in paragraph):
            result += symbol_list(paragraph)
        elif is_preformatted(paragraph):
            result += ["::", "", *("    " + line for line in paragraph)]
        else:
            result += map(escape, paragraph)
    return result


def is_preformatted(paragraph: list[str]) -> bool:
    """Return whether the line breaks of a paragraph count: formulas, code and tables."""
    is_formula = all(FORMULA.search(line) for line in paragraph) and paragraph[-1][-1] != "."
    return is_formula or any(line.startswith((" ", "- ", "|", "@")) for line in paragraph)


def split_paragraphs(lines: list[str]) -> list[list[str]]:
    """Return the paragraphs between blank lines."""
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return [paragraph for paragraph in paragraphs if paragraph]


def symbol_list(paragraph: list[str]) -> list[str]:
    """Return `symbol: text` lines as a bullet list; indented lines continue an item."""
    result = []
    for line in paragraph:
        if line.startswith(" "):
            result.append("  " + escape(line.strip()))
        else:
            symbol, _, text = line.partition(": ")
            result.append(f"- ``{symbol}``: {escape(text.strip())}")
    return result


def escape(line: str) -> str:
    """Escape what reStructuredText would interpret; code in backticks becomes literal text.

    >>> escape("a * b, `c * d` and x_")
    'a \\\\* b, ``c * d`` and x\\\\_'
    """
    parts = re.split(r"`([^`]+)`", line)
    parts[::2] = [re.sub(r"([*|`]|_(?=\W|$))", r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [f"``{part}``" for part in parts[1::2]]
    return "".join(parts)


def process_docstring(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Rewrite the docstrings of this package; those of base classes elsewhere stay."""
    if name.startswith("addnorm"):
        lines[:] = convert_docstring(lines)
        if what == "property" and lines:  # napoleon takes a text before a colon for the type
            lines[0] = lines[0].replace(": ", " \N{EN DASH} ", 1)


def skip_member(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out methods that another library defines, such as scikit-learn's `set_fit_request`."""
    home = getattr(obj, "__module__", None) or "addnorm"
    return None if home.startswith("addnorm") else True


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the hooks; that of docstrings runs before napoleon's."""
    app.connect("autodoc-process-docstring", process_docstring, priority=400)
    app.connect("autodoc-skip-member", skip_member)
    return {"parallel_read_safe": True}
