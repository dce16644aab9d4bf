"""What a visit hands back: blocks, norms, findings, rows."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from addnorm.core.rows import Row
from addnorm.doctor.analysis.typical_layer import TypicalLayer

Severity = Literal["info", "warning", "error"]
MISWIRING_RULES = (
    "double_norm", "missing_final_norm", "doubled_final_norm", "skip_after_norm", "shared_norm",
    "scale_on_branch", "ffn_fed_unadded", "wrong_axis",
)  # fmt: skip
"""Findings with which a model is not quite the arrangement that it is closest to."""
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "error")
MAX_PATHS = 4
"""Places that a line names."""


def join_paths(paths: Iterable[str]) -> str:
    """The first of some places, for a line.

    >>> few(["a", "b", "a", ""])
    "'a', 'b', 'the model itself'"
    """
    found = list(dict.fromkeys(path or "the model itself" for path in paths))
    more = f" and {len(found) - MAX_PATHS} more" if len(found) > MAX_PATHS else ""
    return ", ".join(map(repr, found[:MAX_PATHS])) + more


@dataclass(frozen=True)
class NormUse:
    """One use of a norm."""

    path: str
    """The module that did it."""
    kind: str
    """layer, rms, l2, batch, group, instance, dyt, derf."""
    place: str
    """entry, exit, after, inside, final or elsewhere."""
    eps: float | None
    by_hand: bool
    """Written out rather than called by name."""
    block: int | None = None
    """The block it belongs to."""


@dataclass(frozen=True)
class Block:
    """One residual add."""

    index: int
    path: str
    """The module that adds."""
    branch: str
    """The module that the branch comes from."""
    kind: str
    """self-attention, cross-attention, feed-forward, convolution, mixer or other."""
    wiring: str
    """Where its norms stand: pre_ln, post_ln, res_post, sandwich, none, mid-norm, false_pre_ln;
    pre_post, res_post_post and sandwich_post have one more behind the sum."""
    tags: tuple[str, ...]
    """parallel, rezero, layer-scale, scaled-shortcut, scaled-branch, gated, ..."""
    stream: int
    """Which residual stream it adds to."""
    norm: str | None = None
    """The kind of its norm."""
    shortcut_scale: float | None = None
    branch_scale: float | None = None
    """Factors, where they are numbers or weights small enough to average."""
    measurements: Mapping[str, float] = field(default_factory=dict)

    def __getattr__(self, name: str) -> float:
        if name != "measurements" and name in self.measurements:
            return self.measurements[name]
        raise AttributeError(f"a block has no {name!r}")


@dataclass(frozen=True)
class Finding:
    """Something wrong, or worth knowing."""

    rule: str
    severity: Severity
    path: str
    message: str
    """What is so, and what to change."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """The numbers or the two things compared."""

    def evidence_text(self) -> str:
        """The evidence in one line."""
        return ", ".join(
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in self.evidence.items()
        )[:300]


@dataclass(frozen=True)
class Report:
    """A visit's result."""

    model: str
    blocks: tuple[Block, ...]
    findings: tuple[Finding, ...]
    rows: tuple[Row, ...]
    """Every measurement, one number each."""
    norms: tuple[NormUse, ...] = ()
    inner: tuple[Block, ...] = ()
    """Residual adds inside a branch, and of attention scores: reported, not counted."""
    stacks: tuple[str, ...] = ()
    """One line for each stream."""
    odd: tuple[str, ...] = ()
    """Blocks unlike the others of their stream, one line each."""
    notes: tuple[str, ...] = ()
    """What could not be seen."""
    signature: tuple[Any, ...] = ()
    sketches: tuple[TypicalLayer, ...] = ()
    """A typical layer of each stream, for a picture."""
    stress: tuple[Row, ...] = ()

    @cached_property
    def arrangement(self) -> str | None:
        """The closest known arrangement, as call string."""
        return import_module("addnorm.doctor.matching").arrangement(self)

    @cached_property
    def fits(self) -> tuple[str, ...]:
        """Every known wiring that is as close, the closest arrangement first."""
        return import_module("addnorm.doctor.matching").fits(self)

    @cached_property
    def families(self) -> tuple[str, ...]:
        """Released families with the same arrangement and norm."""
        return import_module("addnorm.doctor.matching").families(self)

    def closest(self) -> str:
        """The closest arrangement with its families, and what was found that keeps it from it."""
        alike = f" ({', '.join(self.families)})" if self.families else ""
        found = dict.fromkeys(f.rule for f in self.findings if f.rule in MISWIRING_RULES)
        but = f", but for {', '.join(found)}" if self.arrangement and found else ""
        return f"{self.arrangement or 'none'}{alike}{but}"

    def stream_statistics(self) -> list[tuple[str, str, float]]:
        """Vital signs of whole streams and of attentions: where, what, how much."""
        wide = ("dependency_sum", "growth", "similarity_rise")
        found = [
            (f"stream {row['stream']}", row["measure"].replace("_", " "), row["value"])
            for row in self.rows
            if row["measure"] in wide
        ]
        for row in self.rows:
            if row["measure"] in ("max_logit", "attention_entropy"):
                found.append((row["path"] or "-", row["measure"].replace("_", " "), row["value"]))
        return found

    @cached_property
    def sensitivity(self) -> dict[int, float]:
        """How much the learning rate matters in the stress run, by length of the warm-up."""
        return import_module("addnorm.doctor.stress_test").sensitivity(self.stress)

    def stress_table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """The stress run as a table of words: its head and its rows."""
        names = ("lr", "warmup", "steps", "first_loss", "last_loss", "largest_gradient", "finite")
        rows = [
            tuple(f"{row[n]:.3g}" if isinstance(row[n], float) else str(row[n]) for n in names)
            for row in self.stress
        ]
        return tuple(name.replace("_", " ") for name in names), rows

    def sensitivities(self) -> list[str]:
        """A line for each length of the warm-up."""
        return [
            f"sensitivity to the rate {f'with {steps} steps of' if steps else 'without'} warm-up: "
            f"{share:.2f} (0 every rate does as well as the best, 1 none learns)"
            for steps, share in self.sensitivity.items()
        ]

    def worst(self) -> Severity | None:
        """The highest severity among the findings."""
        found = {finding.severity for finding in self.findings}
        return next((s for s in reversed(SEVERITIES) if s in found), None)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
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
        """All of it as JSON; numbers that JSON has no word for are null."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)

    def to_html(self, path: str | Path) -> Path:
        """Write one self-contained page."""
        # Pages stand above the doctor and know it; it does not know them, so it asks by name.
        return import_module("addnorm.report.doctor_page").write_doctor_page(self, path)


def _to_json_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _to_json_value(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_json_value(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | type(None)) else str(value)
