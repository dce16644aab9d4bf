"""Batch of a plan: sequences and tokens."""

import re
from typing import Any

from addnorm.core.errors import UserError
from addnorm.models import Config


def parse_batch(batch: Any, config: Config) -> tuple[int, int]:
    """Return sequences and tokens of each; images have as many tokens as patches.

    >>> parse_batch("8x4096", Config(kind="lm", vocab=9, dim=8, depth=1, heads=1))
    (8, 4096)
    """
    if isinstance(batch, str):
        match = re.fullmatch(r"(\d+)(?:\s*x\s*(\d+))?", batch.strip().lower())
        sizes: tuple[Any, ...] = () if match is None else tuple(each for each in match.groups())
        sizes = tuple(int(each) for each in sizes if each is not None)
    elif isinstance(batch, tuple | list):
        sizes = tuple(batch)
    else:
        sizes = (batch,)
    if config.image is not None and config.patch is not None and sizes:
        sizes = (sizes[0], (config.image // config.patch) ** 2 + config.class_tokens)
    are_sizes = all(isinstance(each, int) and each > 0 for each in sizes)
    if len(sizes) != 2 or not are_sizes:
        raise UserError(
            f"batch: expected sequences and their length, such as 8x4096, got {batch!r}"
        )
    return sizes[0], sizes[1]
