"""Checks of `scale_without_init` for the scaled initialization of GPT-2.

The last matrix of each of the N branches of a stack starts with 1 / sqrt(N) of the deviation of the
other matrices. Found are stacks that scale a part of these matrices only, and stacks that mark them
by an attribute, as `c_proj.SCALE_INIT = 1`, which the initialization does not read.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from torch import Tensor, nn

from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.analysis.weight_roles import find_weight_roles
from addnorm.doctor.report import Finding, Severity
from addnorm.doctor.rule_context import RuleContext

MIN_SCALED_MATRICES = 2
"""Fewest matrices that are scaled alike."""
SAME_DEVIATION = 0.1
"""Relative difference up to which two standard deviations count as equal."""
INIT_WORDS = ("init", "scale", "std", "resid", "depth", "gain")
"""Words in the name of an attribute that announces an initialization. Other attributes of these
matrices may have other purposes, such as the distribution over devices."""
UNITS: tuple[Callable[[Tensor], float], ...] = (
    lambda w: 1.0,
    lambda w: 1 / math.sqrt(w.shape[1]),
    lambda w: 1 / math.sqrt(w.shape[0]),
    lambda w: 1 / math.sqrt(sum(w.shape)),
)
"""Deviations by shape that initializations give: none, by fan-in, by fan-out, by both."""


@dataclass(frozen=True, slots=True)
class _Matrices:
    """The matrices of attention and feed-forward branches, by name."""

    blocks: list[AddAnalysis]
    last: dict[str, Tensor]
    """The last matrix of each branch."""
    others: dict[str, Tensor]
    kinds: dict[str, str]
    """Kind of the branch of each last matrix."""

    def relative_deviations(self, unit: Callable[[Tensor], float]) -> dict[str, float]:
        """Return the deviations of the last matrices relative to the others."""
        base = median(float(w.std()) / unit(w) for w in self.others.values())
        return {
            name: float(w.std()) / unit(w) / base if base else 0.0 for name, w in self.last.items()
        }

    @property
    def is_scaled_by_shape(self) -> bool:
        """Whether one deviation per fan explains all matrices, which 1 / sqrt(N) may equal."""
        return any(
            all(_is_close(r, 1) for r in self.relative_deviations(unit).values())
            for unit in UNITS[1:]
        )


def _is_close(ratio: float, expected: float) -> bool:
    return math.isclose(ratio, expected, rel_tol=SAME_DEVIATION)


def _find_matrices(context: RuleContext) -> _Matrices | None:
    blocks = [b for b in context.blocks if b.kind in ("self-attention", "feed-forward")]
    result = _Matrices(blocks, {}, {}, {})
    for block in blocks:
        for name, role in find_weight_roles(context.analysis, block).items():
            weight = context.weights[name].detach().float()
            if weight.dim() == 2 and min(weight.shape) > 1:
                is_last = role in ("out", "ffn_out")
                (result.last if is_last else result.others)[name] = weight
                result.kinds[name] = block.kind
    few = min(len(result.last), len(result.others)) < MIN_SCALED_MATRICES
    return None if few else result


def check_scaled_init(context: RuleContext) -> Finding | None:
    """Check that 1 / sqrt(N) on the last matrices of branches applies to all of them."""
    matrices = _find_matrices(context)
    if matrices is None:
        return None
    ratios = matrices.relative_deviations(UNITS[0])
    expected = 1 / math.sqrt(len(matrices.blocks))
    scaled = [name for name, ratio in ratios.items() if _is_close(ratio, expected)]
    plain = [name for name, ratio in ratios.items() if _is_close(ratio, 1)]
    is_mixed = len(scaled) >= MIN_SCALED_MATRICES and plain and not set(scaled) & set(plain)
    if not is_mixed or len(scaled) + len(plain) < len(ratios) or matrices.is_scaled_by_shape:
        return None
    return Finding(
        "scale_without_init", "warning", plain[0].rpartition(".")[0],
        f"the last matrices of {len(scaled)} branches start with {expected:.2f} = 1 / sqrt("
        f"{len(matrices.blocks)}) of the usual deviation, as in GPT-2, those of {len(plain)} "
        f"branches ({matrices.kinds[plain[0]]}) with all of it; scale the last matrix of every "
        "branch",
        {"scaled": scaled[:2], "unscaled": plain[:2], "expected": expected},
    )  # fmt: skip


def check_init_flags(context: RuleContext) -> Finding | None:
    """Check that last matrices marked by an attribute start smaller than the others."""
    matrices = _find_matrices(context)
    if matrices is None:
        return None
    for flag, value in _iter_flags(context, matrices):
        ratios = [matrices.relative_deviations(unit) for unit in UNITS]
        factor = float(value) if not isinstance(value, bool) and 0 < value < 1 else None
        expected = 1 / math.sqrt(len(matrices.blocks)) if factor is None else factor
        if expected > 1 - 2 * SAME_DEVIATION:
            continue
        if not any(all(_is_close(r, 1) for r in each.values()) for each in ratios):
            continue
        is_named = any(word in flag.lower() for word in INIT_WORDS)
        severity: Severity = "warning" if is_named else "info"
        first = next(iter(matrices.last))
        return Finding(
            "scale_without_init", severity, first.rpartition(".")[0],
            f"the last matrices of all branches are marked by {flag}={value!r}, but start with the "
            f"same deviation as the others; scale them by {expected:.2f} after the model is built, "
            "or remove the mark",
            {"flag": flag, "marked": len(matrices.last), "expected": expected},
        )  # fmt: skip
    return None


def _iter_flags(context: RuleContext, matrices: _Matrices) -> Iterator[tuple[str, Any]]:
    """Yield attributes that all last matrices have and no other matrix of these classes has.

    An attribute of the weight itself, or of the module that holds it.
    """
    last = [_attributes(context, name) for name in matrices.last]
    others = [_attributes(context, name) for name in matrices.others]
    for flag in last[0]:
        values = {repr(attributes.get(flag)) for attributes in last}
        value = last[0][flag]
        is_number = isinstance(value, bool | int | float) and bool(value)
        is_mark = len(values) == 1 and is_number and not any(each.get(flag) for each in others)
        if is_mark:
            yield flag, value


def _attributes(context: RuleContext, name: str) -> dict[str, Any]:
    """Return what was set on a matrix, or on its module, beyond the attributes of plain ones."""
    path, _, own = name.rpartition(".")
    module = context.trace.model.get_submodule(path)
    plain = set(vars(nn.Module())) | {"in_features", "out_features", "nf", "nx"}
    found = {key: value for key, value in vars(module).items() if key not in plain}
    return found | dict(vars(getattr(module, own)))
