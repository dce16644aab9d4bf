"""Public data sets that are not part of addnorm, read from the folder in `ADDNORM_DATA`.

Claims on real tasks use them. A claim whose data are missing is skipped, with the reason.
"""

import gzip
import lzma
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from addnorm.core.errors import UserError
from addnorm.data.corpus import write_corpus

if TYPE_CHECKING:
    import pandas as pd

DATA_VARIABLE = "ADDNORM_DATA"
TRAIN_PAIRS, VALID_PAIRS = 10_000, 200
"""Sentence pairs of Multi30k that are used."""
TRAIN_PARAGRAPHS, VALID_PARAGRAPHS = 3_000, 60
"""Paragraphs of WikiText-2 that are used."""
CALIFORNIA = "tabular/california-housing/housing.csv.gz"

Splits = dict[str, list[dict[str, Any]]]


class ExternalCorpus(NamedTuple):
    """A corpus made from files below the data folder."""

    task: str
    files: tuple[str, ...]
    read: Callable[[], Splits]


def make_external_corpus(folder: Path, name: str) -> Path:
    """Write the corpus with a name below `folder`, unless it exists; return its folder."""
    corpus = folder / name
    if not (corpus / "corpus.json").exists():
        external = CORPORA[name]
        write_corpus(corpus, external.task, splits=external.read(), about={"source": name})
    return corpus


def find_missing_data(name: str) -> str:
    """Return why a data set cannot be read, or an empty string if it can."""
    files = CORPORA[name].files if name in CORPORA else (CALIFORNIA,)
    root = os.environ.get(DATA_VARIABLE, "")
    missing = [file for file in files if not root or not (Path(root) / file).is_file()]
    if not missing:
        return ""
    return (
        f"{DATA_VARIABLE}: expected a folder that contains {missing[0]}, got {root or 'nothing'}; "
        "see docs/guides/claims.md"
    )


def read_california() -> "pd.DataFrame":
    """Return 20,640 districts; the target is the median house value."""
    import pandas as pd

    frame = pd.read_csv(_data_file(CALIFORNIA))
    return frame.rename(columns={"median_house_value": "target"})


def _data_file(name: str) -> Path:
    path = Path(os.environ.get(DATA_VARIABLE, "")) / name
    if not path.is_file():
        raise UserError(f"{DATA_VARIABLE}: expected a folder that contains {name}")
    return path


def _read_lines(name: str) -> Iterator[str]:
    path = _data_file(name)
    opened = gzip.open if path.suffix == ".gz" else lzma.open
    with opened(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield line.strip()


def _read_multi30k() -> Splits:
    """Return English-German captions of images."""
    folder = "translation/multi30k"
    return {
        split: [
            {"source": english, "target": german}
            for english, german in islice(
                zip(
                    _read_lines(f"{folder}/{file}.en.gz"),
                    _read_lines(f"{folder}/{file}.de.gz"),
                    strict=True,
                ),
                count,
            )
        ]
        for split, file, count in (("train", "train", TRAIN_PAIRS), ("valid", "val", VALID_PAIRS))
    }


def _read_wikitext() -> Splits:
    """Return paragraphs of Wikipedia, without headings."""

    def paragraphs(split: str, count: int) -> list[dict[str, Any]]:
        lines = _read_lines(f"lm/wikitext-2/{split}.txt.xz")
        return [{"text": line} for line in islice((x for x in lines if x and x[0] != "="), count)]

    return {
        "train": paragraphs("train", TRAIN_PARAGRAPHS),
        "valid": paragraphs("valid", VALID_PARAGRAPHS),
    }


CORPORA: dict[str, ExternalCorpus] = {
    "multi30k": ExternalCorpus(
        "translate",
        tuple(
            f"translation/multi30k/{split}.{language}.gz"
            for split in ("train", "val")
            for language in ("en", "de")
        ),
        _read_multi30k,
    ),
    "wikitext-2": ExternalCorpus(
        "lm",
        ("lm/wikitext-2/train.txt.xz", "lm/wikitext-2/valid.txt.xz"),
        _read_wikitext,
    ),
}
"""Corpora by name."""

EXTERNAL_TABLES: "dict[str, Callable[[], pd.DataFrame]]" = {"california": read_california}
"""Functions that read tables, by name; the target column is `target`."""
EXTERNAL_NAMES = {*CORPORA, *EXTERNAL_TABLES}
