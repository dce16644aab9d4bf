"""Base class of claims: a statement with its source, an experiment, a chart and a rule."""

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
"""smoke tests the machinery, standard gives the verdict, full uses larger models and more steps."""

registry: "Registry[Claim]" = Registry("claim")
register = registry.register


@dataclass(frozen=True, kw_only=True)
class ChartSpec:
    """The chart of a claim: the rows to plot, the x axis and the grouping into lines."""

    name: str
    """Name of the rows to plot, as means over seeds with intervals."""
    x: str
    """Field on the x axis."""
    y: str
    """Label of the y axis."""
    group_by: tuple[str, ...] = ("arm",)
    """Fields that separate the lines."""
    log_x: bool = False
    log_y: bool = False
    guides: tuple[tuple[float, str], ...] = ()
    """Horizontal guide lines: (value, label)."""


@dataclass(frozen=True)
class ClaimWorkspace:
    """Folders, engine and callback that a claim runs with."""

    folder: Path
    """Folder of the claim."""
    studies: Path
    """Folder of the comparisons that claims share."""
    engine: Engine | None = None
    """Engine for the cells of comparisons; None uses processes on this machine."""
    callback: ComparisonCallback = field(default_factory=ComparisonCallback)
    """Receives the events of the comparisons, and progress messages where there is none."""


class Claim(ABC):
    """A published statement that can be measured. Its card holds the statement and the paper.

    `rows` measures, `checks` compares the rows with the rule, and `judge` combines the checks to a
    verdict. The last two are pure functions, so a verdict can be recomputed from stored rows.
    """

    paper_location: ClassVar[str]
    """Sections, theorems and tables of the paper."""
    experiment: ClassVar[str]
    """Description of the experiment, one paragraph."""
    rule: ClassVar[str]
    """Decision rule as text, written before the run."""
    about: ClassVar[tuple[str, ...]]
    """Wirings and norms that the claim is about; their pages link to it."""
    finding: ClassVar[str]
    """What was found, as a clause. `{label}` stands for the number of the check with that label and
    `{exp:label}` for its exponential."""
    measured_on: ClassVar[str]
    """Task and size of the models of the standard budget."""
    reach: ClassVar[str]
    """What the result does not say."""
    discussion: ClassVar[str] = ""
    """What was different here, if the claim is not held."""
    pilot: ClassVar[str] = "None: nothing was run before the rule was written."
    """Runs that were seen before the rule got its current form."""
    chart: ClassVar[ChartSpec]
    """Chart of the report."""
    corrected: ClassVar[bool] = False
    """Whether the author of the current rule had seen rows of an earlier run."""
    has_new_rows: ClassVar[bool] = False
    """Whether a corrected rule judges only runs that started after the correction."""
    attributed_to: ClassVar[str] = ""
    """Source of the statement, if it is not the card's paper."""
    revision: ClassVar[int] = 1
    """Increase by hand if changed code produces other rows from the same settings."""
    method: ClassVar[str]
    """at the start, or by training."""

    @abstractmethod
    def settings(self, budget: Budget) -> dict[str, Any]:
        """Return everything that determines the rows, as plain data."""

    @abstractmethod
    def cost(self, budget: Budget) -> str:
        """Return the cost as text, such as the number of cells and steps."""

    @abstractmethod
    def rows(self, budget: Budget, workspace: ClaimWorkspace) -> list[Row]:
        """Run the experiment and return the measured rows."""

    @abstractmethod
    def checks(self, rows: Sequence[Row]) -> list[Check]:
        """Apply the rule to rows."""

    def find_missing_data(self, budget: Budget) -> str:
        """Return why the claim cannot be run here, or an empty string if it can."""
        return ""

    def chart_rows(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return the rows that the chart shows."""
        return rows

    def summarize(self, verdict: Verdict) -> str:
        """Return one sentence: what was found, what it was measured on, and how far it reaches."""
        checks = {check.what: check for check in verdict.checks}

        def number(match: re.Match[str]) -> str:
            check = checks.get(match["label"])
            return check.format_short(exp=bool(match["exp"])) if check else "?"

        found = re.sub(r"\{(?P<exp>exp:)?(?P<label>[^{}]+)\}", number, self.finding)
        return f"{found[:1].upper()}{found[1:]} ({self.measured_on}; {self.reach})."

    @property
    def source(self) -> str:
        """Authors and year of the statement."""
        return self.attributed_to or format_source(registry.card(claim_name(self)))

    def judge(self, rows: Sequence[Row]) -> Verdict:
        """Return the verdict on rows."""
        return Verdict(tuple(self.checks(rows)))

    def is_current(self, digest: str, budget: Budget) -> bool:
        """Return whether rows with this digest match the current settings and revision."""
        return digest == self.digest(budget)

    def digest(self, budget: Budget) -> str:
        """Return the hash of settings and revision that identifies the rows."""
        data = {"settings": self.settings(budget), "revision": self.revision}
        text = json.dumps(data, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def format_source(card: Card) -> str:
    """Return the authors and the year of a card's paper.

    >>> paper = "Ba and Hinton, A B, 2016"
    >>> format_source(Card(name="", title="", formula="", summary="", paper=paper))
    'Ba and Hinton, 2016'
    """
    authors = re.match(r"[^,]+ et al\.|[^,]+?(?:, [^,]+?)*? and [^,]+|[^,]+", card.paper)
    return f"{authors.group() if authors else card.paper}, {card.year}"


def claim_name(claim: Claim) -> str:
    """Return the registered name of a claim, which is the name of its file."""
    return type(claim).__module__.rpartition(".")[2]
