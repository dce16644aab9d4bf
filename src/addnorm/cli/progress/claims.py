"""Progress of `addnorm claims`: one line per claim, and the progress of each comparison."""

from addnorm.claims import Claim, ClaimsCallback, Result
from addnorm.claims.claim import claim_name
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.engines.base import Event
from addnorm.report.progress.base import ProgressReporter
from addnorm.report.progress.comparison import ComparisonReporter, make_comparison_reporter


class ClaimsReporter(ProgressReporter, ClaimsCallback):
    """Reports the start and the verdict of each claim.

    Each comparison gets a reporter of its own, because a reporter counts the cells of one
    comparison.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reporter: ComparisonReporter | None = None
        self.has_results = False
        """Whether a claim has a result, so that a report can be written."""

    def on_claim_start(self, claim: Claim, *, number: int, total: int) -> None:
        self.on_message(f"claim {number} of {total}: {claim_name(claim)} ({claim.method})")

    def on_claim_end(self, claim: Claim, result: Result, *, cached: bool) -> None:
        self.has_results = True
        reason = f" ({result.why})" if result.why else ""
        duration = "already done" if cached else f"{result.seconds:,.0f} s"
        self.on_message(f"{result.claim}: {result.answer}{reason}, {duration}")

    def on_comparison_start(self, study: Study, workers: int) -> None:
        self.close()
        self.reporter = make_comparison_reporter()
        self.reporter.on_comparison_start(study, workers)

    def on_cell_event(self, event: Event) -> None:
        if self.reporter is not None:
            self.reporter.on_cell_event(event)

    def on_comparison_end(self, study: Study) -> None:
        if self.reporter is not None:
            self.reporter.on_comparison_end(study)

    def close(self) -> None:
        if self.reporter is not None:
            self.reporter.close()
