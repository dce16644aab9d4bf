"""Language modeling demo: the documentation topics that ship with Python."""

import random
from collections import defaultdict
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed

HOLDOUT_FRACTION = 0.05
"""Fraction of the characters in valid, and in test."""
MIN_SHARED_CHARACTERS = 60
"""Length from which a paragraph in two topics counts as shared text."""


def make(seed: int) -> tuple[dict[str, list[dict[str, str]]], dict[str, Any]]:
    """Return the topics of `pydoc_data`, one per record, without trailing spaces.

    Some topics contain others. Topics that share a paragraph stay in the same split, so that no
    held-out text occurs in training.
    """
    topics = _load_topics()
    groups = _group_topics(topics)
    # The largest group, the data model and the topics inside it, is too large to be held out.
    largest = max(groups, key=lambda group: _count_characters(topics, group))
    rest = [group for group in groups if group is not largest]
    random.Random(derive_seed(seed, "demo", "lm")).shuffle(rest)
    total = sum(map(len, topics.values()))
    parts: dict[str, list[str]] = {"train": list(largest), "valid": [], "test": []}
    for group in rest:
        parts[_choose_split(topics, parts, group, limit=HOLDOUT_FRACTION * total)] += group
    splits = {
        part: [{"text": topics[name]} for name in sorted(names)] for part, names in parts.items()
    }
    about = {
        "topics": {part: len(names) for part, names in parts.items()},
        "characters": {part: _count_characters(topics, names) for part, names in parts.items()},
        "held_out_topics": {part: sorted(parts[part]) for part in ("valid", "test")},
        "note": "the text differs between versions of Python: compare losses within one",
    }
    return splits, about


def _load_topics() -> dict[str, str]:
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UserError(
            "this Python has no pydoc_data.topics, the text of the lm demo; try a complete "
            "CPython, or your own files"
        ) from None
    plain = {
        name: "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")
        for name, text in sorted(topics.items())
    }
    return {name: text for name, text in plain.items() if text}


def _group_topics(topics: dict[str, str]) -> list[list[str]]:
    """Return the connected groups of topics that share a long paragraph."""
    owners: dict[str, list[str]] = defaultdict(list)
    for name, text in topics.items():
        for paragraph in {" ".join(part.split()): None for part in text.split("\n\n")}:
            if len(paragraph) >= MIN_SHARED_CHARACTERS:
                owners[paragraph].append(name)
    group_of = {name: [name] for name in topics}
    for names in owners.values():
        for other in names[1:]:
            one, two = group_of[names[0]], group_of[other]
            if one is not two:
                one += two
                group_of.update(dict.fromkeys(two, one))
    return list({id(group): group for group in group_of.values()}.values())


def _choose_split(
    topics: dict[str, str], splits: dict[str, list[str]], group: list[str], *, limit: float
) -> str:
    """Return the first held-out split below the limit with the group, else train."""
    for part in ("test", "valid"):
        if _count_characters(topics, splits[part]) + _count_characters(topics, group) <= limit:
            return part
    return "train"


def _count_characters(topics: dict[str, str], names: list[str]) -> int:
    return sum(len(topics[name]) for name in names)
