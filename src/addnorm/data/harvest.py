"""Parallel text out of the catalogues below some folders."""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from addnorm.core.errors import UserError
from addnorm.data.clean import Cleaner
from addnorm.data.counts import Counts
from addnorm.data.gettext import BrokenCatalogue, Catalogue, Entry, read_catalogue
from addnorm.data.languages import Language, language_of, rank, wanted_language
from addnorm.data.sources import check_folder

ENDINGS = (".po", ".mo", ".gmo")  # the first is preferred: it knows what is fuzzy
SYMBOLIC = re.compile(r"[A-Za-z0-9]+(?:[_.:/-][A-Za-z0-9]+)*[_.:][A-Za-z0-9]+(?:[_.:/-]\w+)*")

Pair = tuple[str, str]


@dataclass(frozen=True)
class Found:
    """A catalogue on disk: where, in which language, and of which domain."""

    path: Path
    language: Language
    domain: str
    """Its path with a star for the language: equal for the languages of one program."""


def harvest(
    folders: Sequence[str | Path], *, source: str, target: str, cleaner: Cleaner
) -> Iterator[dict[str, str]]:
    """Clean pairs of all catalogues, in the order of their paths."""
    counts = cleaner.counts
    wanted = wanted_language(source, "--from"), wanted_language(target, "--to")
    if wanted[0] == wanted[1]:
        raise UserError(f"--from {source} and --to {target} are one language; wanted two")
    domains = _domains(folders, counts)
    served = 0
    for domain in sorted(domains):
        chosen = [_best(domains[domain], language) for language in wanted]
        pairs = _domain_pairs(chosen, wanted, counts)
        if pairs is None:
            continue
        served += 1
        where = str(next(found.path for found in reversed(chosen) if found))
        for pair in pairs:
            if clean := cleaner.clean(*pair, where):
                yield {"source": clean[0], "target": clean[1]}
    counts.note("domains with both languages", served)
    if not served:
        there = {found.language.language for files in domains.values() for found in files}
        raise UserError(
            f"no catalogue from {source} to {target} below {', '.join(map(str, folders))}; "
            f"languages there: {', '.join(sorted(there)) or 'none'}; {_advice(there, counts)}"
        )


def _advice(there: set[str], counts: Counts) -> str:
    if broken := counts.first.get("broken catalogues"):
        return f"wanted catalogues that can be read, but {broken}"
    if there:
        return "wanted both languages; try one of those there"
    return "wanted files such as de/LC_MESSAGES/x.mo or po/de.po; try /usr/share/locale"


def _domain_pairs(
    chosen: list[Found | None], wanted: tuple[Language, Language], counts: Counts
) -> Iterator[Pair] | None:
    """The pairs of one program, not cleaned; None if it has not both languages.

    Messages are English, so where English is wanted the ids serve, unless a catalogue of English
    says better what they mean.
    """
    english = [language.language == "en" and language.region in ("", "US") for language in wanted]
    left, right = (None if found is None else _read(found, counts) for found in chosen)
    if english[0]:
        return None if right is None else _from_ids(right, left, counts)
    if english[1]:
        if left is None:
            return None
        return ((target, source) for source, target in _from_ids(left, right, counts))
    return None if left is None or right is None else _by_id(left, right, counts)


def _from_ids(other: Catalogue, english: Catalogue | None, counts: Counts) -> Iterator[Pair]:
    texts = {entry.key: entry for entry in english.entries} if english else {}
    for entry in other.entries:
        if not _usable(entry, counts):
            continue
        known = texts.get(entry.key)
        if known and any(known.strings) and not known.fuzzy and not known.obsolete:
            sources = _forms(known, english)
        elif entry.default:
            sources = [entry.default]
        elif SYMBOLIC.fullmatch(entry.ids[0]):
            counts.saw()
            counts.drop("symbolic id")
            continue
        else:
            sources = list(entry.ids[:2])
        yield from _paired(sources, _forms(entry, other), counts)


def _by_id(left: Catalogue, right: Catalogue, counts: Counts) -> Iterator[Pair]:
    sources = {entry.key: entry for entry in left.entries if not entry.obsolete and not entry.fuzzy}
    for entry in right.entries:
        if not _usable(entry, counts):
            continue
        source = sources.get(entry.key)
        if source is None or not any(source.strings):
            counts.saw()
            counts.drop("no counterpart")
            continue
        yield from _paired(_forms(source, left), _forms(entry, right), counts)


def _usable(entry: Entry, counts: Counts) -> bool:
    states = {
        "obsolete": entry.obsolete,
        "fuzzy": entry.fuzzy,
        "untranslated": not any(entry.strings),
    }
    for reason, holds in states.items():
        if holds:
            counts.saw()
            counts.drop(reason)
            return False
    return True


def _forms(entry: Entry, catalogue: Catalogue | None) -> list[str]:
    """[for one], or [for one, for many] if the language has just these two."""
    assert catalogue is not None
    if len(entry.ids) == 1:
        return [entry.strings[0]]
    if len(entry.strings) == catalogue.plurals == 2:
        one = catalogue.singular % 2
        return [entry.strings[one], entry.strings[1 - one]]
    if len(entry.strings) == 1:  # one form for all numbers, as in Chinese; so it is both
        return [entry.strings[0], entry.strings[0]]
    singular = catalogue.singular
    return [entry.strings[singular] if singular < len(entry.strings) else ""]


def _paired(sources: list[str], targets: list[str], counts: Counts) -> Iterator[Pair]:
    for pair in zip(sources, targets, strict=False):  # the singular alone, if one side has no more
        counts.saw()
        yield pair


def _best(files: list[Found], wanted: Language) -> Found | None:
    ranked = [
        (place, found.language, str(found.path), found)
        for found in files
        if (place := rank(found.language, wanted)) is not None
    ]
    return min(ranked)[-1] if ranked else None


def _read(found: Found, counts: Counts) -> Catalogue | None:
    try:
        catalogue = read_catalogue(found.path)
    except BrokenCatalogue as problem:
        counts.note("broken catalogues")
        counts.first.setdefault("broken catalogues", f"{found.path}: {problem}")
        return None
    counts.note("catalogues read")
    return catalogue


def _domains(folders: Iterable[str | Path], counts: Counts) -> dict[str, list[Found]]:
    """All catalogues below the folders, by domain; a .po stands for the .mo beside it."""
    domains: dict[str, list[Found]] = defaultdict(list)
    for folder in map(Path, folders):
        check_folder(folder, ".mo or .po files")
        stems: set[Path] = set()
        paths = sorted(_walk(folder, counts), key=lambda path: ENDINGS.index(path.suffix))
        for path in paths:
            if path.with_suffix("") in stems:
                counts.note("compiled catalogues beside their source, not read")
                continue
            stems.add(path.with_suffix(""))
            if found := _found(path, folder):
                domains[found.domain].append(found)
            else:
                counts.note("catalogues whose path names no language, not read")
    return domains


def _walk(folder: Path, counts: Counts) -> Iterator[Path]:
    def unreadable(problem: OSError) -> None:
        counts.note("folders that cannot be read")

    for root, _, names in os.walk(folder, onerror=unreadable):
        yield from (Path(root, name) for name in names if name.endswith(ENDINGS))


def _found(path: Path, folder: Path) -> Found | None:
    """Recognise de/LC_MESSAGES/x.mo, de.po, x.de.po, locale/de_DE/.../x.po and x-de.po."""
    parts = list(path.absolute().with_suffix("").parts)
    for place, tag in _tags(parts, inside=len(path.relative_to(folder).parts)):
        if language := language_of(tag):
            parts[place] = parts[place].removesuffix(tag) + "*"
            return Found(path, language, str(Path(*parts)))
    return None


def _tags(parts: list[str], inside: int) -> Iterator[tuple[int, str]]:
    """(place, tag) of what may name a language, the surest first; `inside` parts are not given."""
    name, last = parts[-1], len(parts) - 1
    if "LC_MESSAGES" in parts[1:]:
        place = last - parts[::-1].index("LC_MESSAGES") - 1
        yield place, parts[place]
    yield last, name
    yield from ((last, name[at + 1 :]) for at, sign in enumerate(name) if sign == ".")
    yield from ((place, parts[place]) for place in range(last - 1, last - inside - 1, -1))
    yield from ((last, name[at + 1 :]) for at, sign in enumerate(name) if sign in "-_")
