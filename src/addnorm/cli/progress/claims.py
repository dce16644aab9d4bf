"""Claims as they run, on standard error: a line for each, and the board of each comparison."""

import sys

from addnorm.claims import Claim, ClaimsCallback, Result
from addnorm.claims.claim import claim_name
from addnorm.cli.progress.comparison import ComparisonReporter as Follower
from addnorm.cli.progress.comparison import LiveTable, LogLines
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.engines.base import Event
from addnorm.comparison.run import ComparisonCallback


class ClaimsReporter(ClaimsCallback):
    """Says which claim is at work, and what became of it."""

    def __init__(self) -> None:
        self.comparison_reporter = ComparisonReporterRelay()
        self.has_results = False

    def on_claim_start(self, claim: Claim, *, number: int, total: int) -> ComparisonCallback:
        """Say which, and hand over who follows its comparisons."""
        self.on_message(f"claim {number} of {total}: {claim_name(claim)} ({claim.method})")
        return self.comparison_reporter

    def on_claim_end(self, claim: Claim, result: Result, *, cached: bool) -> None:
        """Say what became of it."""
        self.has_results = True
        why = f" ({result.why})" if result.why else ""
        took = "done already" if cached else f"{result.seconds:,.0f} s"
        self.on_message(f"{result.claim}: {result.answer}{why}, {took}")

    def on_message(self, text: str) -> None:
        """On a line of its own."""
        sys.stderr.write(f"addnorm: {text}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Leave the terminal as it should be."""
        self.comparison_reporter.close()


class ComparisonReporterRelay(ComparisonCallback):
    """A new board for every comparison: they count cells that are not those of the next."""

    def __init__(self) -> None:
        self.reporter: Follower | None = None

    def on_comparison_start(self, study: Study, workers: int) -> None:
        """Begin anew."""
        self.close()
        self.reporter = LiveTable() if sys.stderr.isatty() else LogLines()
        self.reporter.on_comparison_start(study, workers)

    def on_cell_event(self, event: Event) -> None:
        """Pass it on."""
        if self.reporter is not None:
            self.reporter.on_cell_event(event)

    def on_comparison_end(self, study: Study, *, interrupted: bool) -> None:
        """Pass it on."""
        if self.reporter is not None:
            self.reporter.on_comparison_end(study, interrupted=interrupted)

    def close(self) -> None:
        """Also if it did not end well."""
        if self.reporter is not None:
            self.reporter.close()
