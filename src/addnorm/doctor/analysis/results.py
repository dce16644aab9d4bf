"""What was understood of each join, and of all of them together."""

from dataclasses import dataclass, field

from addnorm.doctor.analysis.axis_mixing import AxisMixing
from addnorm.doctor.analysis.norms import Norm
from addnorm.doctor.analysis.streams import StreamLink
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Scale
from addnorm.doctor.residual.residual_adds import ResidualAdd


@dataclass(slots=True)
class AddAnalysis:
    """What was understood of one join."""

    add: ResidualAdd
    link: StreamLink
    entry_norms: list[int] = field(default_factory=list)
    """Norms through which every way into the branch leads; empty if some way has none."""
    partial_norms: list[int] = field(default_factory=list)
    """Norms on some ways into the branch only."""
    exit_norm: int = -1
    """The norm at the end of the branch."""
    scales: tuple[Scale, ...] = ()
    """Factors on the branch."""
    inner_norms: list[int] = field(default_factory=list)
    """Norms inside the branch."""
    has_post_norm: bool = False
    post_norm: int = -1
    final_norms: list[int] = field(default_factory=list)
    """Norms behind the last join of a stream that belong to no class."""
    activation_after: str = ""
    """An activation behind the sum."""
    steps: list[AxisMixing] = field(default_factory=list)
    """Where tokens see one another in the branch."""
    kind: str = "other"
    is_parallel: bool = False
    fed_by: int = -1
    """What the branch before made, where this one reads that instead of the sum."""
    is_attention_score: bool = False
    outer_add: int = -1
    """The join in whose branch this one stands."""
    skipped_adds: int = 0
    """Joins of its own stream that this one leaps over."""
    stream: int = 0
    is_false_pre_norm: bool = False
    is_dual: bool = False
    """Adds a branch that another stream has already."""
    is_merge: bool = False
    """Adds up two streams and no branch."""
    is_reversible: bool = False
    """Belongs to a stream some of whose branches read another one."""

    @property
    def is_excluded(self) -> bool:
        """Whether it is no block of a main stream."""
        return self.is_attention_score or self.is_merge or self.outer_add >= 0

    @property
    def has_pre_norm(self) -> bool:
        """Whether the branch reads a normalized stream."""
        return bool(self.entry_norms)

    def is_gated_or_mixed(self) -> bool:
        """Whether the shortcut is more than a shortcut."""
        return self.add.is_gated or self.add.is_mixed


@dataclass(slots=True)
class ModelAnalysis:
    """Everything found in one graph."""

    graph: Graph
    norms: dict[int, Norm]
    add_analyses: list[AddAnalysis]

    def blocks(self) -> list[AddAnalysis]:
        """Joins of the main streams: no scores of attention, nothing inside a branch, no sum of
        two streams."""
        return [r for r in self.add_analyses if not r.is_excluded]
