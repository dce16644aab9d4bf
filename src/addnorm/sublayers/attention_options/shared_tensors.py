"""Tensors that the sub-layers of a stack share during one forward pass."""

from dataclasses import dataclass

from torch import Tensor


@dataclass
class SharedTensors:
    """Object that a stack creates for each forward pass, for sub-layers that name `shared`.

    values: (B, kv_heads, L, K) values of the first attention layer, for value residuals
    """

    values: Tensor | None = None
