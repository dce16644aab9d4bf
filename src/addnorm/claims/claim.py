"""What every claim is: a statement with its source, an experiment, a chart and a rule."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from addnorm.claims.checks import Check, Verdict
from addnorm.comparison.callbacks import ComparisonCallback
from addnorm.comparison.engines.base import Engine
from addnorm.core.cards import Card
from addnorm.core.registry import Registry
from addnorm.core.rows import Row

Budget = Literal["smoke", "standard", "full"]
BUDGETS: tuple[Budget, ...] = ("smoke", "standard", "full")
"""smoke shows that the machinery works, standard gives the verdict, full takes its time."""

registry: "Registry[Claim]" = Registry("claim")
register = registry.register


@dataclass(frozen=True, kw_only=True)
class ChartSpec:
    """The chart of a claim: which rows are drawn, along what, and how they are told apart."""

    name: str
    """Rows of this name are drawn, means over seeds with their intervals."""
    x: str
    """The field along which they are drawn."""
    y: str
    """What the values are, in words."""
    group_by: tuple[str, ...] = ("arm",)
    """Fields that tell one line from another."""
    log_x: bool = False
    log_y: bool = False
    guides: tuple[tuple[float, str], ...] = ()
    """Values that are marked, with words."""


@dataclass(frozen=True)
class ClaimWorkspace:
    """Where a claim works, and with what."""

    folder: Path
    """Its own, for what it wants to keep."""
    studies: Path
    """Comparisons, which claims share."""
    engine: Engine | None = None
    """Runs the cells of comparisons; processes of this machine if None."""
    callback: ComparisonCallback = field(default_factory=ComparisonCallback)
    """Receives the events of the comparisons, and progress messages where there is none."""


class Claim(ABC):
    """A published statement that can be measured. Its card says who made it, in which words.

    Numbers become rows, rows become checks, and checks a verdict: each step is a pure function, so
    that a verdict can be given again from the rows alone.
    """

    paper_location: ClassVar[str]
    """Where in the paper."""
    experiment: ClassVar[str]
    """What is done here, in a paragraph."""
    rule: ClassVar[str]
    """What decides, in words; written before its run."""
    pilot: ClassVar[str] = "None: nothing was run before the rule was written."
    """What was run and looked at before the rule was as it is, in words."""
    chart: ClassVar[ChartSpec]
    """Its chart."""
    corrected: ClassVar[bool] = False
    """Whether the rule of today was written by somebody who had seen rows."""
    attributed_to: ClassVar[str] = ""
    """Whose statement it is, if not that of the card's paper."""
    revision: ClassVar[int] = 1
    """Raised by hand when the code makes other rows from the same settings."""
    method: ClassVar[str]
    """At the start or by training."""

    @abstractmethod
    def settings(self, budget: Budget) -> dict[str, Any]:
        """All that decides the rows, as plain data."""

    @abstractmethod
    def cost(self, budget: Budget) -> str:
        """What it takes, in a few words."""

    @abstractmethod
    def rows(self, budget: Budget, workspace: ClaimWorkspace) -> list[Row]:
        """Measure."""

    @abstractmethod
    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """The rule, applied."""

    def chart_rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Those of which the chart is made."""
        return rows

    @property
    def source(self) -> str:
        """Who said it when."""
        return self.attributed_to or format_source(registry.card(claim_name(self)))

    def judge(self, rows: Sequence[Row]) -> Verdict:
        """The verdict that follows from rows."""
        return Verdict(tuple(self.checks(rows)))

    def is_current(self, digest: str, budget: Budget) -> bool:
        """Whether rows of this digest are those that it would make now."""
        return digest == self.digest(budget)

    def digest(self, budget: Budget) -> str:
        """What tells its rows from others: the settings and the revision."""
        decides = {"settings": self.settings(budget), "revision": self.revision}
        text = json.dumps(decides, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def format_source(card: Card) -> str:
    """Who said it when: authors and year, without the title.

    >>> source_of(Card(name="", title="", formula="", summary="", paper="Ba and Hinton, A B, 2016"))
    'Ba and Hinton, 2016'
    """
    named = re.match(r"[^,]+ et al\.|[^,]+?(?:, [^,]+?)*? and [^,]+|[^,]+", card.paper)
    return f"{named.group() if named else card.paper}, {card.year}"


def claim_name(claim: Claim) -> str:
    """The name under which a claim is registered: that of its file."""
    return type(claim).__module__.rpartition(".")[2]
