"""Report of the doctor: blocks, norms, findings and measurements, as plain frozen data."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from addnorm.core.display import render_html
from addnorm.core.rows import Row
from addnorm.doctor.analysis.typical_layer import TypicalLayer

Severity = Literal["info", "warning", "error"]
MISWIRING_RULES = (
    "double_norm", "missing_final_norm", "doubled_final_norm", "skip_after_norm", "shared_norm",
    "scale_on_branch", "ffn_fed_unadded", "wrong_axis", "missing_residual", "dropout_on_stream",
)  # fmt: skip
"""Rules whose findings say that a model deviates from its closest arrangement."""
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")
MAX_PATHS = 4
"""Maximum number of module paths in one line."""


def join_paths(paths: Iterable[str]) -> str:
    """Return the first few of some module paths in one line.

    >>> join_paths(["a", "b", "a", ""])
    "'a', 'b', 'the model itself'"
    """
    names = list(dict.fromkeys(path or "the model itself" for path in paths))
    more = f" and {len(names) - MAX_PATHS} more" if len(names) > MAX_PATHS else ""
    return ", ".join(map(repr, names[:MAX_PATHS])) + more


@dataclass(frozen=True)
class NormUse:
    """One execution of a norm in the forward pass; a shared norm has several."""

    path: str
    """Module that executes it."""
    kind: str
    """layer, rms, l2, l1, mean_abs, max_abs, max, batch, group, instance, dyt, derf."""
    place: str
    """entry, exit, after, inside, final or elsewhere."""
    eps: float | None
    by_hand: bool
    """Whether it is written out as single operations."""
    block: int | None = None
    """Index of the block it belongs to."""


@dataclass(frozen=True)
class Block:
    """One residual add."""

    index: int
    path: str
    """Module that executes the addition."""
    branch: str
    """Module that computes the branch."""
    kind: str
    """self-attention, cross-attention, feed-forward, convolution, mixer or other."""
    wiring: str
    """Position of its norms: pre_ln, post_ln, res_post, sandwich, none, mid-norm or false_pre_ln;
    pre_post, res_post_post and sandwich_post have another norm after the sum."""
    tags: tuple[str, ...]
    """parallel, sub-ln, rezero, layer-scale, scaled-shortcut, scaled-branch, gated, ..."""
    stream: int
    """Number of the residual stream that it adds to."""
    branches: tuple[str, ...] = ()
    """Kinds of all branches that it adds; two if parallel branches are summed first."""
    norm: str | None = None
    """Kind of its norm."""
    shortcut_scale: float | None = None
    branch_scale: float | None = None
    """Factors; the mean of a learned vector. None if there is no factor or it is too large."""
    measurements: Mapping[str, float] = field(default_factory=dict)
    """Statistics by name; each is also an attribute of the block."""

    def __getattr__(self, name: str) -> float:
        if name != "measurements" and name in self.measurements:
            return self.measurements[name]
        raise AttributeError(f"a block has no {name!r}")


@dataclass(frozen=True)
class Finding:
    """Result of a rule."""

    rule: str
    severity: Severity
    path: str
    message: str
    """What is wrong, and what to change."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """Values that the rule compared."""

    def evidence_text(self) -> str:
        """Return the evidence in one line."""
        return ", ".join(
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.evidence.items()
        )[:300]

    def __str__(self) -> str:
        where = f" at {self.path}" if self.path else ""
        evidence = f"\n  evidence: {self.evidence_text()}" if self.evidence else ""
        return f"{self.severity} {self.rule}{where}: {self.message}{evidence}"


@dataclass(frozen=True)
class Report:
    """Result of a diagnosis."""

    model: str
    blocks: tuple[Block, ...]
    findings: tuple[Finding, ...]
    rows: tuple[Row, ...]
    """Measurements, one number per row."""
    norms: tuple[NormUse, ...] = ()
    inner: tuple[Block, ...] = ()
    """Residual adds inside a branch and of attention scores, which are not blocks."""
    stacks: tuple[str, ...] = ()
    """One line per stream."""
    odd: tuple[str, ...] = ()
    """Blocks that differ from the others of their stream, one line each."""
    notes: tuple[str, ...] = ()
    """What could not be traced or measured."""
    signature: tuple[Any, ...] = ()
    """Wirings and tags without sizes; see `signature.py`."""
    arrangement: str | None = None
    """Call string of the closest known wiring; None if no wiring is similar."""
    fits: tuple[str, ...] = ()
    """Names of all known wirings that are as close, the plainest first."""
    families: tuple[str, ...] = ()
    """Presets with the same wiring and norm."""
    sketches: tuple[TypicalLayer, ...] = ()
    """A typical layer of each stream, for a diagram."""
    stress: tuple[Row, ...] = ()
    """Rows of the stress test, if it ran."""

    def __str__(self) -> str:
        lines = [self.model, *(f"  {line}" for line in self.stacks or ("no residual adds found",))]
        if self.blocks:
            lines.append(f"  closest arrangement: {self.closest()}")
        lines += [f"  outlier: {line}" for line in self.odd]
        lines += [f"  note: {line}" for line in self.notes]
        for block in self.blocks:
            words = (block.path or "-", block.kind, block.wiring, *block.tags)
            lines.append(f"  block {block.index}: {' '.join(words)}")
        return "\n".join([*lines, *(map(str, self.findings) if self.findings else ["no findings"])])

    def _repr_html_(self) -> str:
        rows = [(each.severity, each.rule, each.path, each.message) for each in self.findings]
        lines = self.stacks or ("no residual adds found",)
        lines = (*lines, *self.notes) if rows else (*lines, "no findings", *self.notes)
        head = ("severity", "rule", "path", "message")
        return render_html(self.model, lines, head=head, rows=rows, details=str(self))

    def closest(self) -> str:
        """Return the closest arrangement, its families, and the findings that contradict it."""
        families = f" ({', '.join(self.families)})" if self.families else ""
        rules = dict.fromkeys(f.rule for f in self.findings if f.rule in MISWIRING_RULES)
        deviations = f", except for {', '.join(rules)}" if self.arrangement and rules else ""
        return f"{self.arrangement or 'none'}{families}{deviations}"

    def stream_statistics(self) -> list[tuple[str, str, float]]:
        """Return the measurements of streams and attentions as (location, measure, value)."""
        statistics = [
            (f"stream {row['stream']}", row["measure"].replace("_", " "), row["value"])
            for row in self.rows
            if row["measure"] in ("dependency_sum", "growth", "similarity_rise")
        ]
        statistics += [
            (row["path"] or "-", row["measure"].replace("_", " "), row["value"])
            for row in self.rows
            if row["measure"] in ("max_logit", "attention_entropy")
        ]
        return statistics

    @property
    def sensitivity(self) -> dict[int, float]:
        """Sensitivity to the learning rate in the stress test, by warm-up steps."""
        return compute_sensitivity(self.stress)

    def stress_table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return header and rows of the stress test as text."""
        names = ("lr", "warmup", "steps", "first_loss", "last_loss", "largest_gradient", "finite")
        rows = [
            tuple(f"{row[n]:.3g}" if isinstance(row[n], float) else str(row[n]) for n in names)
            for row in self.stress
        ]
        return tuple(name.replace("_", " ") for name in names), rows

    def sensitivities(self) -> list[str]:
        """Return one line on the sensitivity for each number of warm-up steps."""
        return [
            "sensitivity to the learning rate "
            f"{f'with {steps} steps of' if steps else 'without'} warm-up: {value:.2f} "
            "(0: all learning rates reach the best loss, 1: none learns)"
            for steps, value in self.sensitivity.items()
        ]

    def worst(self) -> Severity | None:
        """Return the highest severity among the findings; None without findings."""
        severities = {finding.severity for finding in self.findings}
        return next((s for s in reversed(SEVERITIES) if s in severities), None)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "model": self.model,
            "arrangement": self.arrangement,
            "fits": list(self.fits),
            "families": list(self.families),
            "stacks": list(self.stacks),
            "odd": list(self.odd),
            "notes": list(self.notes),
            "blocks": [_to_json_value(asdict(block)) for block in self.blocks],
            "inner": [_to_json_value(asdict(block)) for block in self.inner],
            "norms": [_to_json_value(asdict(norm)) for norm in self.norms],
            "findings": [_to_json_value(asdict(finding)) for finding in self.findings],
            "rows": [_to_json_value(dict(row)) for row in self.rows],
            "stress": [_to_json_value(dict(row)) for row in self.stress],
            "sensitivity": _to_json_value(self.sensitivity),
        }

    def to_json(self) -> str:
        """Return the report as JSON; NaN and infinity become null."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)


def compute_sensitivity(rows: Sequence[Row]) -> dict[int, float]:
    """Return the sensitivity to the learning rate in a stress test, by warm-up steps.

    sum_i (L_i - min L) / (n (L_0 - min L)), where L_i is the last loss at rate i and at most the
    first loss L_0. It is 0 if every rate reaches the best loss, near 1 - 1 / n if only one rate
    learns, and 1 if none does.

    Wortsman et al., Small-scale proxies for large-scale Transformer training instabilities, 2023,
    arXiv 2309.14322, section 2.2; divided by L_0 - min L, so that different losses compare.

    Args:
        rows: rows of `stress_test.stress`
    """
    sensitivities: dict[int, float] = {}
    for warmup in dict.fromkeys(row["warmup"] for row in rows):
        runs = [row for row in rows if row["warmup"] == warmup]
        first = runs[0]["first_loss"]
        last = [min(run["last_loss"], first) if run["finite"] else first for run in runs]
        gain = first - min(last)
        excess = sum(loss - min(last) for loss in last)
        sensitivities[warmup] = excess / (len(last) * gain) if gain > 0 else 1.0
    return sensitivities


def _to_json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _to_json_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_json_value(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | type(None)) else str(value)
