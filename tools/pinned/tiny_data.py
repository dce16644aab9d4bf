"""Tiny training data: a corpus per text task, a table, and the recipe keys of a short run."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from addnorm.data.corpus import write_corpus

TEXT_TASKS = ("translate", "lm", "classify", "mlm")


TINY_RUN: dict[str, Any] = {
    "dim": 8, "depth": 1, "heads": 2, "tokenizer": "char", "max_length": 16, "batch_tokens": 64,
    "steps": 4, "log_every": 1, "monitor_every": 2, "valid_every": 2, "save_every": 2,
}  # fmt: skip


def write_tiny_corpus(folder: Path, task: str = "translate") -> Path:
    """Write a corpus whose texts are a few numbers; return its folder."""
    numbers = [str(137 * number) for number in range(1, 40)]
    records = {
        "translate": [{"source": text, "target": text[::-1]} for text in numbers],
        "lm": [{"text": text} for text in numbers],
        "classify": [{"text": text, "label": ["even", "odd"][int(text) % 2]} for text in numbers],
        "mlm": [{"text": text} for text in numbers],
    }[task]
    splits = {"train": records[:24], "valid": records[24:32], "test": records[32:]}
    return write_corpus(folder, task, splits=splits, about={"source": "numbers"}).folder


def make_tiny_table(rows: int = 40) -> pd.DataFrame:
    """Return a table with one column of every column type."""
    generator = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "number": generator.normal(size=rows),
            "flag": generator.random(rows) < 0.5,
            "color": generator.choice(["red", "green", "blue"], rows),
            "note": [f"item {row} of box {row % 7}, serial {7919 * row}" for row in range(rows)],
            "day": pd.Timestamp("2026-01-01")
            + pd.to_timedelta(generator.integers(0, 900, rows), "D"),
        }
    )
