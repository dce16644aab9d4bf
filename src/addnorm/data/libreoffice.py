"""LibreOffice help: the same pages in two languages, aligned by the id of each paragraph."""

from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from addnorm.core.errors import UserError
from addnorm.data.clean import Cleaner
from addnorm.data.counts import Counts
from addnorm.data.sources import check_folder

BLOCKS = frozenset(("p", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "li", "td", "th", "dt", "dd"))
BREAKS = frozenset(("br", "img", "td", "tr", "li", "div"))

# An id may come twice on a page, where one paragraph is shown in two places.
Key = tuple[str, int]


def align(
    source: str | Path, target: str | Path, *, languages: tuple[str, str], cleaner: Cleaner
) -> Iterator[dict[str, str]]:
    """Clean pairs of paragraphs, page by page in the order of their paths."""
    counts = cleaner.counts
    left, right = (
        _pages(Path(folder), language)
        for folder, language in zip((source, target), languages, strict=True)
    )
    common = sorted(left.keys() & right.keys())
    if not common:
        raise UserError(
            f"{source} has {len(left)} pages (.html) and {target} has {len(right)}, none with the "
            f"same path; wanted what the packages libreoffice-help-en-us and -de, say, unpack to"
        )
    counts.note("pages in both languages", len(common))
    counts.note("pages in one language only", len(left) + len(right) - 2 * len(common))
    for page in common:
        yield from _page(left[page], right[page], cleaner)


def _page(left: Path, right: Path, cleaner: Cleaner) -> Iterator[dict[str, str]]:
    counts = cleaner.counts
    one, other = paragraphs(_read(left, counts)), paragraphs(_read(right, counts))
    for key, text in one.items():
        counts.saw()
        if key not in other:
            counts.drop("no counterpart", f"{left}, id {key[0]}")
        elif pair := cleaner.clean(text, other[key], f"{left}, id {key[0]}"):
            yield {"source": pair[0], "target": pair[1]}
    if alone := len(other.keys() - one.keys()):
        counts.note("paragraphs of the target alone", alone)


def paragraphs(html: str) -> dict[Key, str]:
    """The text of every paragraph and heading that has an id.

    >>> paragraphs('<p id="par_1">An <b>old</b> hat</p><p>no id</p>')
    {('par_1', 0): 'An old hat'}
    """
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader.found


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: dict[Key, str] = {}
        self.times: Counter[str] = Counter()
        self.tag = self.id = ""
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in BLOCKS:
            self._end()  # a block does not stand in a block; one may be left open
            self.tag, self.id = tag, dict(attrs).get("id") or ""
        elif tag in BREAKS:
            self.text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag == self.tag:
            self._end()

    def handle_data(self, data: str) -> None:
        if self.id:
            self.text.append(data)

    def close(self) -> None:
        super().close()
        self._end()

    def _end(self) -> None:
        if self.id and (text := " ".join("".join(self.text).split())):
            self.found[self.id, self.times[self.id]] = text
            self.times[self.id] += 1
        self.tag = self.id = ""
        self.text = []


def _pages(folder: Path, language: str) -> dict[str, Path]:
    """The pages of a tree by their path below `text`, or below the folder if there is none."""
    check_folder(folder, "the help's .html pages")
    if (folder / language).is_dir():  # the folder of all languages
        folder = folder / language
    pages = {}
    for path in sorted(folder.rglob("*.html")):
        parts = path.relative_to(folder).parts
        start = parts.index("text") if "text" in parts else 0
        pages["/".join(parts[start:])] = path
    return pages


def _read(path: Path, counts: Counts) -> str:
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        counts.note("pages with invalid UTF-8")
        return data.decode("utf-8", errors="surrogateescape")  # its paragraphs are left out later
