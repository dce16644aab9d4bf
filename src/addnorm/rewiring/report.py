"""Report of a rewiring: its grade, the proof, and what happened to every tensor."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from addnorm.core.display import render_html

Grade = Literal["exact", "equal_at_start", "fitted"]
GRADES: tuple[Grade, ...] = ("exact", "equal_at_start", "fitted")
"""Grades of a change, the strictest first."""


def worst_grade(grades: Iterable[Grade]) -> Grade:
    """Return the least strict of several grades.

    >>> worst_grade(["exact", "fitted"])
    'fitted'
    """
    return max(grades, key=GRADES.index, default="exact")


@dataclass(frozen=True)
class Change:
    """One change of an arrangement.

    >>> print(Change("h.0.ln_1", "layer", "rms", "exact", "writers of its stream centered"))
    h.0.ln_1: layer -> rms (exact): writers of its stream centered
    """

    site: str
    """Path of the module, or the name of a part of the model."""
    before: str
    after: str
    grade: Grade
    text: str = ""
    """How it was done, or why it is not exact."""

    def __str__(self) -> str:
        how = f": {self.text}" if self.text else ""
        return f"{self.site}: {self.before} -> {self.after} ({self.grade}){how}"


@dataclass(frozen=True)
class TensorChanges:
    """Names of the tensors of a rewired model, by what happened to them."""

    kept: tuple[str, ...] = ()
    """Tensors with the values of the original."""
    transformed: tuple[str, ...] = ()
    """Same name, or the same role under another name, other values."""
    new: tuple[str, ...] = ()
    """Tensors without a counterpart in the original."""
    removed: tuple[str, ...] = ()
    """Tensors of the original without a counterpart in the result."""
    sources: tuple[tuple[str, str], ...] = ()
    """(new name, old name) of kept tensors that were renamed."""

    def __str__(self) -> str:
        counts = ((len(getattr(self, name)), name) for name in self._NAMES)
        return ", ".join(f"{count} {name}" for count, name in counts if count)

    _NAMES = ("kept", "transformed", "new", "removed")


@dataclass(frozen=True)
class RewireReport:
    """What `addnorm.rewire` did, and the proof of it."""

    grade: Grade
    """exact: the same function. equal_at_start: the same function until training moves a new
    parameter. fitted: another function, fitted on the data of the caller."""
    max_error: float
    """Largest difference of outputs in float64, on the given and on further inputs."""
    output_scale: float
    """Largest output of the original on the same inputs, to compare `max_error` with."""
    changes: tuple[Change, ...]
    loss_before: float
    """Loss of the original on the data of the caller."""
    loss_after: float
    """Loss of the result on the same data."""
    loss_naive: float | None = None
    """Loss right after the change without any fit; None if nothing was fitted."""
    loss_name: str = "loss"
    """What was measured: the loss, or a difference of outputs where no loss is known."""
    inputs: int = 0
    """Number of input batches on which outputs were compared."""
    rounding_error: float = 0.0
    """Largest difference of outputs in the precision of the model, to which weights are rounded."""
    precision: str = "float32"
    """Precision of the model."""
    tensors: TensorChanges = TensorChanges()
    notes: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether the result computes the same function."""
        return self.grade == "exact"

    def __str__(self) -> str:
        return "\n".join((f"grade: {self.grade}", *self._facts(), *map(str, self._change_lines())))

    def _facts(self) -> list[str]:
        naive = f", naive {self.loss_naive:.4f}" if self.loss_naive is not None else ""
        return [
            f"largest difference in float64: {self.max_error:.2g} on {self.inputs} batches "
            f"(outputs up to {self.output_scale:.3g})",
            f"largest difference in {self.precision}: {self.rounding_error:.2g}",
            f"{self.loss_name}: before {self.loss_before:.4f}{naive}, after {self.loss_after:.4f}",
            f"tensors: {self.tensors}",
            *(f"note: {note}" for note in self.notes),
        ]

    def _change_lines(self) -> list[str]:
        """Return one line for each distinct change; equal ones at many sites are one line."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for change in self.changes:
            key = (change.before, change.after, change.grade, change.text)
            groups.setdefault(key, []).append(change.site)
        lines = []
        for (before, after, grade, text), sites in groups.items():
            where = sites[0] if len(sites) == 1 else f"{len(sites)} sites, first {sites[0]}"
            how = f": {text}" if text else ""
            lines.append(f"{where}: {before} -> {after} ({grade}){how}")
        return lines

    def _repr_html_(self) -> str:
        rows = [(each.site, each.before, each.after, each.grade) for each in self.changes]
        head = ("site", "before", "after", "grade")
        return render_html(f"rewire: {self.grade}", tuple(self._facts()), head=head, rows=rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)
