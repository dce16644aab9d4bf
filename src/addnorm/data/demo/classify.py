"""Classification: which package of the standard library a docstring comes from."""

import ast
import gc
import random
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed

MIN_WORDS = 5  # a docstring with fewer says too little
MIN_CLASS_TEXTS = 100  # a package with fewer is no class
HOLDOUT_FRACTION = 0.1  # share of every class in valid, and in test
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
STATEMENT_FIELDS = ("body", "orelse", "finalbody", "handlers", "cases")  # where statements stand
DOCSTRING_NODES = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def make(
    seed: int, *, folder: str | Path | None = None
) -> tuple[dict[str, list[dict[str, str]]], dict[str, Any]]:
    """Docstrings below `folder` (this Python's standard library), labelled by package or module.

    The sources are read, never imported. A text that two packages share has no right answer and is
    left out; one that a package repeats is kept once. Every class is split alike.
    """
    folder = Path(folder or sysconfig.get_path("stdlib"))
    labels_of: dict[str, set[str]] = {}
    with _gc_disabled():
        for label, text in _iter_docstrings(folder):
            labels_of.setdefault(text, set()).add(label)
    owned = {text: min(labels) for text, labels in labels_of.items() if len(labels) == 1}
    counts = Counter(owned.values())
    classes = sorted(label for label, count in counts.items() if count >= MIN_CLASS_TEXTS)
    if len(classes) < 2:
        raise UserError(
            f"{folder} holds {len(classes)} packages with {MIN_CLASS_TEXTS} or more docstrings, wanted the"
            " sources (.py) of Python's standard library and at least 2; a Python whose library is"
            " zipped, compiled or stripped has none: try another, or your own texts"
        )
    splits: dict[str, list[dict[str, str]]] = {"train": [], "valid": [], "test": []}
    for label in classes:
        texts = sorted(text for text, owner in owned.items() if owner == label)
        random.Random(derive_seed(seed, "demo", "classify", label)).shuffle(texts)
        held = round(HOLDOUT_FRACTION * len(texts))
        for part, chosen in (
            ("test", texts[:held]),
            ("valid", texts[held : 2 * held]),
            ("train", texts[2 * held :]),
        ):
            splits[part] += [{"text": text, "label": label} for text in chosen]
    for part, records in splits.items():
        random.Random(derive_seed(seed, "demo", "classify", "order", part)).shuffle(records)
    total = sum(counts[label] for label in classes)
    most = max(classes, key=lambda label: counts[label])
    about = {
        "classes": {label: counts[label] for label in classes},
        "majority": {"label": most, "share": round(counts[most] / total, 4)},
        "shared_texts_left_out": len(labels_of) - len(owned),
        "note": "texts stand as they are; some name their package",
    }
    return splits, about


def _iter_docstrings(folder: Path) -> Iterator[tuple[str, str]]:
    """(package or module, docstring on one line) of all sources, in the order of their paths."""
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).parts):
        inside = path.relative_to(folder).parts
        if SKIPPED_FOLDERS.intersection(inside):
            continue
        try:
            with warnings.catch_warnings(action="ignore"):  # old escapes in other people's sources
                tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue  # templates and broken files are no part of the library
        label = inside[0].removesuffix(".py")
        for node in _iter_statements(tree):
            if isinstance(node, DOCSTRING_NODES) and (text := ast.get_docstring(node)):
                words = text.split()
                if len(words) >= MIN_WORDS:
                    yield label, " ".join(words)


def _iter_statements(tree: ast.Module) -> Iterator[ast.AST]:
    """The tree and all statements in it; expressions document nothing."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        yield node
        for name in STATEMENT_FIELDS:
            left += getattr(node, name, [])


@contextmanager
def _gc_disabled() -> Iterator[None]:
    """Without garbage collection, which goes over every tree time and again: half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
