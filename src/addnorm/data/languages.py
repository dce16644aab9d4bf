"""Languages as files and folders name them: de, de_AT, zh-cn, sr@latin, pt_BR.UTF-8."""

import re
from functools import cache
from typing import NamedTuple

from babel.core import get_global

from addnorm.core.errors import UserError, nearest

TAG = re.compile(
    r"(?P<language>[a-z]{2,3})"
    r"(?:[_-](?P<script>[A-Z][a-z]{3}))?"
    r"(?:[_-](?P<region>[A-Z]{2}|[a-z]{2}|[0-9]{3}))?"
    r"(?:\.[\w-]+)?(?:@(?P<variant>[\w-]+))?"
)
OLD = {"no": "nb", "iw": "he", "in": "id", "ji": "yi", "mo": "ro"}
SCRIPTS = {"latin": "Latn", "cyrillic": "Cyrl", "devanagari": "Deva", "shaw": "Shaw"}
AS_WRITTEN = {"tw": "Hant", "hk": "Hant", "mo": "Hant", "cn": "Hans", "sg": "Hans"}  # Chinese


class Language(NamedTuple):
    """A language, the script it is written in, and a region or variant if one is named."""

    language: str
    script: str
    region: str = ""
    variant: str = ""


@cache
def language_of(tag: str) -> Language | None:
    """What a tag means; None if it names no language that CLDR knows.

    >>> language_of("zh-cn")
    Language(language='zh', script='Hans', region='CN', variant='')
    >>> language_of("sr@latin").script, language_of("LC_MESSAGES")
    ('Latn', None)
    """
    match = TAG.fullmatch(tag)
    if not match:
        return None
    language = OLD.get(match["language"], match["language"])
    likely = get_global("likely_subtags").get(language)
    if not likely:
        return None
    region, variant = (match["region"] or "").upper(), match["variant"] or ""
    script = match["script"] or SCRIPTS.get(variant) or likely.split("_")[1]
    if language == "zh" and not match["script"]:
        script = AS_WRITTEN.get(region.lower(), "Hans")
    return Language(language, script, region, "" if variant in SCRIPTS else variant)


def wanted_language(tag: str, option: str) -> Language:
    """The language that a user asks for."""
    found = language_of(tag)
    if found is None:
        known = [name for name in get_global("likely_subtags") if "_" not in name]
        close = nearest(tag, known)
        hint = f"did you mean {' or '.join(close)}?" if close else "try de, fr, zh_CN or sr@latin"
        raise UserError(f"{option} is {tag!r}; wanted the code of a language; {hint}")
    return found


def rank(found: Language, wanted: Language) -> int | None:
    """How well a catalogue's language serves: 0 is best, None not at all.

    The language itself comes first, then its usual region (de_DE for de), then others (de_AT); one
    in another script (zh_TW for zh_CN) never does.
    """
    if found[:2] != wanted[:2]:
        return None
    if found == wanted:
        return 0
    if wanted.region:  # de serves who wants de_AT; de_CH does not
        return 1 if not found.region and not found.variant else None
    if found.variant:
        return 3
    return 1 if found.region == usual_region(found) else 2


def usual_region(language: Language) -> str:
    """Where a language in its script is mostly at home."""
    likely = get_global("likely_subtags")
    tag = likely.get(f"{language.language}_{language.script}") or likely[language.language]
    return str(tag.split("_")[-1])
