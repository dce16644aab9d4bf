"""Classification demo: the package of the standard library that a docstring comes from."""

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

MIN_WORDS = 5
"""Words of a docstring; shorter ones are dropped."""
MIN_CLASS_TEXTS = 100
"""Docstrings of a package; packages with fewer are dropped."""
HOLDOUT_FRACTION = 0.1
"""Fraction of each class in valid, and in test."""
SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
STATEMENT_FIELDS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of a syntax tree that hold statements."""
DOCSTRING_NODES = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def make(
    seed: int, *, folder: str | Path | None = None
) -> tuple[dict[str, list[dict[str, str]]], dict[str, Any]]:
    """Return docstrings labeled by package or module.

    The sources are parsed, never imported. A text of two packages has no unique label and is
    dropped; one that a package repeats is kept once. Every class is split in equal proportions.

    Args:
        seed: seed of the split
        folder: folder of the sources; by default the standard library of the running Python

    Returns:
        Records of train, valid and test, and facts for the card.
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
            f"{folder}: expected at least 2 packages with {MIN_CLASS_TEXTS} or more docstrings, "
            f"got {len(classes)}; a Python whose library is zipped, compiled or stripped has no "
            "sources: try another one, or your own texts"
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
    largest = max(classes, key=lambda label: counts[label])
    about = {
        "classes": {label: counts[label] for label in classes},
        "majority": {"label": largest, "share": round(counts[largest] / total, 4)},
        "shared_texts_left_out": len(labels_of) - len(owned),
        "note": "texts stand as they are; some name their package",
    }
    return splits, about


def _iter_docstrings(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (package or module, docstring on one line) of all sources, in the order of paths."""
    for path in sorted(folder.rglob("*.py"), key=lambda path: path.relative_to(folder).parts):
        inside = path.relative_to(folder).parts
        if SKIPPED_FOLDERS.intersection(inside):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in the sources
                tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue  # templates and broken files
        label = inside[0].removesuffix(".py")
        for node in _iter_statements(tree):
            if isinstance(node, DOCSTRING_NODES) and (text := ast.get_docstring(node)):
                words = text.split()
                if len(words) >= MIN_WORDS:
                    yield label, " ".join(words)


def _iter_statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield a tree and all statements in it; expressions have no docstrings."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        yield node
        for name in STATEMENT_FIELDS:
            left += getattr(node, name, [])


@contextmanager
def _gc_disabled() -> Iterator[None]:
    """Disable garbage collection, which takes half of the time on large syntax trees."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
