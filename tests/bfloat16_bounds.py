"""Error bounds for computations in bfloat16, derived from the format by Monte Carlo arithmetic.

A bfloat16 result is compared with a float32 reference on the same (already rounded) inputs and
weights. How far they may be apart depends on the number of roundings on the way and on how much
each one is amplified, which differs from wiring to wiring and from gradient to gradient. Both are
measured instead of guessed: the reference runs again with the result of every operation, forward
and backward, multiplied by 1 + d with a random |d| <= UNIT_ROUNDOFF, the largest relative error of
one rounding to bfloat16. The largest deviation over such runs is the scale of the rounding error of
this computation.

The test passes if the actual error is at most SAFETY times that scale, in the maximum norm over a
tensor. Rounding is not random, and an implementation may round at other places than the reference,
hence the factor. Runs are repeated until the test passes, MAX_DRAWS times at most: one sample of
the scale is enough for most tensors, but not for a single number or behind a gate that may flip.

Parker, Monte Carlo Arithmetic: exploiting randomness in floating-point arithmetic, 1997.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

UNIT_ROUNDOFF = 2.0**-8
"""Largest relative error of rounding to bfloat16, which has 8 significant bits."""
SAFETY = 3.0
MAX_DRAWS = 16
FLOAT32_ERROR = 2.0**-16
"""Relative error of the float32 reference itself: some hundred roundings of 2^-24."""

EXACT = {
    *("_to_copy", "clone", "cat", "stack", "index", "gather", "embedding", "where", "masked_fill"),
    *("neg", "abs", "amax", "amin", "max", "min", "maximum", "minimum", "relu", "clamp"),
}
"""Operations that copy or select values: they do not round."""
STATISTICS = {"native_layer_norm", "native_batch_norm", "_fused_rms_norm"}
"""Operations whose further outputs are statistics, which stay in float32 in mixed precision."""


class RoundingNoise(TorchDispatchMode):
    """Multiplies the float32 results of all operations by 1 + d, |d| <= UNIT_ROUNDOFF."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name in EXACT or any(each.alias_info is not None for each in func._schema.returns):
            return result  # views and operations in place share memory with their inputs
        if not isinstance(result, tuple):
            return self._perturb(result)
        if name in STATISTICS:
            return (self._perturb(result[0]), *result[1:])
        return tuple(self._perturb(each) for each in result)

    def _perturb(self, x: Any) -> Any:
        if not isinstance(x, Tensor) or x.dtype != torch.float32:
            return x
        noise = torch.rand(x.shape, generator=self.generator)
        return x * (1 + UNIT_ROUNDOFF * (2 * noise - 1))


def assert_bfloat16_close(
    actual: Sequence[Tensor], reference: Callable[[], Sequence[Tensor]]
) -> None:
    """Compare bfloat16 tensors with a float32 reference under the bound of the module docstring.

    Args:
        actual: outputs and gradients in bfloat16
        reference: computes the same tensors in float32 from the same values
    """
    expected = list(reference())
    assert {each.dtype for each in actual} == {torch.bfloat16}
    assert {each.dtype for each in expected} == {torch.float32}
    errors = _largest_differences([each.float() for each in actual], expected)
    float32_errors = FLOAT32_ERROR * torch.stack([each.detach().abs().max() for each in expected])
    scales = torch.zeros_like(errors)
    for seed in range(MAX_DRAWS):
        with RoundingNoise(seed):
            noisy = list(reference())
        scales = torch.maximum(scales, _largest_differences(noisy, expected))
        bounds = SAFETY * scales + float32_errors
        if bool((errors <= bounds).all()):
            return
    wrong = [
        f"tensor {index}: error {errors[index]:.3g}, bound {bounds[index]:.3g}"
        for index in (~(errors <= bounds)).nonzero().flatten().tolist()
    ]
    raise AssertionError("; ".join(wrong))


def _largest_differences(these: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    pairs = zip(these, others, strict=True)
    return torch.stack([(a.detach() - b.detach()).abs().max() for a, b in pairs])
