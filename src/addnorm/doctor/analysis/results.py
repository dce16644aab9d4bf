"""Results of the analysis, one frozen record per pass.

Each pass takes the records of the pass before it and returns records with more fields. The classes
inherit from each other in that order, so a function states by its type which passes must have run.

    ResidualAdd    trace and residual/refine.py    where the addition is
    PlacedAdd      norm_placement.py, streams.py   norms on the branch; link to the add before
    NestedAdd      branch_kinds.py, nesting.py     kind of the branch; adds inside and around it
    AddAnalysis    post_norms.py, streams.py       norms after the sum; stream; the final result

Nodes are referred to by their index in the graph; None means that there is no such node.
"""

from dataclasses import dataclass, fields
from typing import Any, TypeVar

from addnorm.doctor.analysis.axis_mixing import AxisMixing
from addnorm.doctor.analysis.norms import Norm
from addnorm.doctor.analysis.streams import StreamLink
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Scale
from addnorm.doctor.residual.residual_adds import ResidualAdd

Record = TypeVar("Record")


@dataclass(frozen=True, kw_only=True)
class PlacedAdd:
    """A residual add with the norms on its branch and its link to the add before."""

    add: ResidualAdd
    fed_by: int | None
    """Output of the branch before, if this branch reads that output and not the sum."""
    entry_norms: tuple[int, ...]
    """Norms at the start of the branch; empty if some path into the branch has none."""
    partial_norms: tuple[int, ...]
    """Norms at the start of some paths into the branch, if others have none."""
    exit_norm: int | None
    """Norm at the end of the branch."""
    inner_norms: tuple[int, ...]
    """Other norms inside the branch."""
    scales: tuple[Scale, ...]
    """Factors on the branch."""
    link: StreamLink
    is_attention_score: bool
    """Whether the sum is the input of a softmax: a residual of attention scores."""

    @property
    def has_pre_norm(self) -> bool:
        """Whether the branch reads a normalized stream."""
        return bool(self.entry_norms)

    @property
    def is_gated_or_mixed(self) -> bool:
        """Whether the shortcut is gated or a mixture of streams."""
        return self.add.is_gated or self.add.is_mixed


@dataclass(frozen=True, kw_only=True)
class NestedAdd(PlacedAdd):
    """A placed add with the kind of its branch and its relation to other adds."""

    kind: str
    """self-attention, cross-attention, feed-forward, convolution, mixer or other."""
    steps: tuple[AxisMixing, ...]
    """Operations of the branch that mix tokens."""
    outer_add: int | None
    """Add whose branch contains this one."""
    skipped_adds: int
    """Number of adds of its own stream that the shortcut skips."""
    is_dual: bool
    """Whether its branch is also added to another stream."""
    is_parallel: bool
    """Whether another branch reads the same fork."""


@dataclass(frozen=True, kw_only=True)
class PostNorms:
    """Norms and activation after the sum of a residual add."""

    has_post_norm: bool = False
    """Whether the norm after the sum belongs to this block, as in Post-LN."""
    post_norm: int | None = None
    """Norm after the sum; it may belong to the next block."""
    final_norms: tuple[int, ...] = ()
    """Norms after the last add of a stream that belong to no block."""
    activation_after: str = ""
    """Activation that reads the sum."""
    is_false_pre_norm: bool = False
    """Whether shortcut and branch both read the normalized stream: `N(x) + f(N(x))`."""


@dataclass(frozen=True, kw_only=True)
class AddAnalysis(NestedAdd, PostNorms):
    """Everything that the analysis finds about one residual add."""

    stream: int
    """Number of the stream that it adds to."""
    is_merge: bool
    """Whether it sums two streams and has no branch."""
    is_reversible: bool
    """Whether some branch of its stream reads another stream."""

    @property
    def is_excluded(self) -> bool:
        """Whether it is not a block of a main stream."""
        return self.is_attention_score or self.is_merge or self.outer_add is not None


@dataclass(frozen=True, slots=True)
class ModelAnalysis:
    """Everything that the analysis finds in one graph."""

    graph: Graph
    norms: dict[int, Norm]
    """Every use of a norm, by the node of its result."""
    add_analyses: tuple[AddAnalysis, ...]
    """Residual adds in the order of execution."""

    def blocks(self) -> list[AddAnalysis]:
        """Return the residual adds of the main streams.

        Excluded are residuals of attention scores, adds inside a branch, and sums of two streams.
        """
        return [block for block in self.add_analyses if not block.is_excluded]


def extend(record_type: type[Record], *records: Any, **values: Any) -> Record:
    """Build a record from the fields of earlier records and new values.

    A value overrides the field of the same name in `records`.
    """
    merged = {f.name: getattr(record, f.name) for record in records for f in fields(record)}
    return record_type(**{**merged, **values})
