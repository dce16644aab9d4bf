"""What was understood of each join, and of all of them together."""

from dataclasses import dataclass, field

from addnorm.doctor.analysis.axis_mixing import Step
from addnorm.doctor.analysis.norms import Norm
from addnorm.doctor.analysis.streams import Link
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Scale
from addnorm.doctor.residual.residual_adds import Join


@dataclass(slots=True)
class Reading:
    """What was understood of one join."""

    join: Join
    link: Link
    entry: list[int] = field(default_factory=list)
    """Norms through which every way into the branch leads; empty if some way has none."""
    partial: list[int] = field(default_factory=list)
    """Norms on some ways into the branch only."""
    exit: int = -1
    """The norm at the end of the branch."""
    scales: tuple[Scale, ...] = ()
    """Factors on the branch."""
    inner: list[int] = field(default_factory=list)
    """Norms inside the branch."""
    post: bool = False
    post_norm: int = -1
    final_norms: list[int] = field(default_factory=list)
    """Norms behind the last join of a stream that belong to no class."""
    after: str = ""
    """An activation behind the sum."""
    steps: list[Step] = field(default_factory=list)
    """Where tokens see one another in the branch."""
    kind: str = "other"
    parallel: bool = False
    fed: int = -1
    """What the branch before made, where this one reads that instead of the sum."""
    score: bool = False
    inside: int = -1
    """The join in whose branch this one stands."""
    around: int = 0
    """Joins of its own stream that this one leaps over."""
    stream: int = 0
    false: bool = False
    dual: bool = False
    """Adds a branch that another stream has already."""
    merge: bool = False
    """Adds up two streams and no branch."""
    reversible: bool = False
    """Belongs to a stream some of whose branches read another one."""

    @property
    def aside(self) -> bool:
        """Whether it is no block of a main stream."""
        return self.score or self.merge or self.inside >= 0

    @property
    def pre(self) -> bool:
        """Whether the branch reads a normalized stream."""
        return bool(self.entry)

    def gated_or_mixed(self) -> bool:
        """Whether the shortcut is more than a shortcut."""
        return self.join.gated or self.join.mixed


@dataclass(slots=True)
class Anatomy:
    """Everything found in one graph."""

    graph: Graph
    norms: dict[int, Norm]
    readings: list[Reading]

    def blocks(self) -> list[Reading]:
        """Joins of the main streams: no scores of attention, nothing inside a branch, no sum of
        two streams."""
        return [r for r in self.readings if not r.aside]
