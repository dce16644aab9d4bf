"""Index of what commands print about registered members, so that they need not import torch.

`tools/docs.py` generates `index.json`. Each of its sections has a hash of the source files that it
was made from. A section whose files have changed is not used; neither is any if plugins may have
registered members. Then commands read the registries, which takes seconds but gives the same text.
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

INDEX_FILE = Path(__file__).with_name("index.json")
PACKAGE = Path(__file__).parents[1]
COMMON = ("core/*.py", "cli/member_facts.py", "cli/registries.py")
DIAGRAMS = ("report/diagram/*.py", "stacks/*.py", "sublayers/*.py", "models/*.py", "norms/*.py")
SOURCES: dict[str, tuple[str, ...]] = {
    "norms": ("norms/*.py",),
    "wirings": ("wirings/*.py", "train/schedules/*.py", *DIAGRAMS),
    "schedules": ("train/schedules/*.py",),
    "optimizers": ("train/optimizers/*.py",),
    "tasks": ("tasks/*.py",),
    "positions": ("sublayers/*.py",),
    "qk_norms": ("sublayers/*.py",),
    "presets": ("wirings/*.py", *DIAGRAMS),
    "claims": ("claims/**/*.py",),
    "claim_list": ("claims/**/*.py", "cli/commands/claims.py"),
    "recipe_keys": ("train/**/*.py", "tasks/*.py", "models/*.py"),
}
"""Files that a section is made from, as patterns below the package."""


def read_section(name: str) -> Any:
    """Return a section of the index; None if it cannot be used and the registries must be read."""
    section = _read_index().get(name)
    if section is None or _has_plugins() or section["sources"] != hash_sources(name):
        return None
    return section["content"]


def write_index(contents: dict[str, Any]) -> str:
    """Return the text of the index.

    Args:
        contents: content of each section of `SOURCES`
    """
    sections = [
        f'"{name}": {{\n"sources": "{hash_sources(name)}",\n"content": {_dump(contents[name])}}}'
        for name in SOURCES
    ]
    return "{\n" + ",\n".join(sections) + "\n}\n"


def _dump(content: Any) -> str:
    """Return JSON with one line for each member, so that changes can be read and merged."""
    lines = content.items() if isinstance(content, dict) else ((None, each) for each in content)
    texts = [
        (f"{json.dumps(key)}: " if key else "")
        + json.dumps(value, ensure_ascii=False, allow_nan=False)
        for key, value in lines
    ]
    start, end = "{}" if isinstance(content, dict) else "[]"
    return start + "\n" + ",\n".join(texts) + "\n" + end


@cache
def hash_sources(name: str) -> str:
    """Return a hash of the source files of a section."""
    digest = hashlib.sha256()
    paths = {path for pattern in (*COMMON, *SOURCES[name]) for path in PACKAGE.glob(pattern)}
    for path in sorted(paths):
        content = path.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{path.relative_to(PACKAGE).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


@cache
def _read_index() -> dict[str, Any]:
    try:
        index = json.loads(INDEX_FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not installed with the package, or being written
        return {}
    return index if isinstance(index, dict) else {}


def _has_plugins() -> bool:
    """Return whether members may be registered that the index does not have."""
    from importlib.metadata import entry_points

    from addnorm.core.registry import PLUGIN_GROUP, REGISTRIES

    return bool(REGISTRIES) or bool(entry_points(group=PLUGIN_GROUP))
