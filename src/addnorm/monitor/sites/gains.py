"""Metrics of norm gains: `gain_min`, `gain_max`, `gain_dead` and `gain_moved`."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

DEAD_FRACTION = 0.01
"""Fraction of the median below which a gain counts as dead."""


def gain_scalars(
    gain: Tensor, norm: str, fields: Mapping[str, Any], start: Tensor
) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """Yield the rows of the gain of a norm, and their values.

    gain_min, gain_max: smallest and largest absolute gain
    gain_dead: fraction of gains below 1 % of their median; 1 if the median is 0
    gain_moved: |g - g_0| / |g_0|, where g_0 is the gain at the first look; not defined if it is 0

    Args:
        gain: gain as the model applies it, such as `1 + weight`
        norm: path of the norm, a further field of its rows
        fields: fields that identify the site in a row
        start: the gain at the first look
    """
    values = gain.detach().float().flatten()
    if not values.numel():
        return
    sizes = values.abs()
    dead = sizes <= DEAD_FRACTION * sizes.median()
    scalars = {"gain_min": sizes.min(), "gain_max": sizes.max(), "gain_dead": dead.float().mean()}
    start = start.float().flatten()
    if start.shape == values.shape:
        length = torch.linalg.vector_norm(start)
        scalars["gain_moved"] = torch.linalg.vector_norm(values - start) / length.clamp_min(1e-30)
    for name, value in scalars.items():
        yield {"name": name, "value": 0.0, **fields, "norm": norm}, value
