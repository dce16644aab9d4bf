"""Comparison callbacks."""

from addnorm.comparison.analysis.study import Study
from addnorm.comparison.engines.base import Event
from addnorm.core.callbacks import Callback


class ComparisonCallback(Callback):
    """Comparison callback. Override the hooks you need; the defaults do nothing.

    The hooks run in the process that calls `compare`, not in the processes that train the cells.
    """

    def on_comparison_start(self, study: Study, workers: int) -> None:
        """Run before the first cell is started.

        Args:
            study: the comparison as its folder holds it; cells of an earlier call may have ended
            workers: number of cells that run at the same time
        """

    def on_cell_event(self, event: Event) -> None:
        """Run when a cell starts, makes progress, pauses or ends."""

    def on_extension(self, study: Study, message: str) -> None:
        """Run when cells were added because of the results.

        Args:
            study: the comparison with its new cells
            message: what was added and why
        """

    def on_comparison_end(self, study: Study) -> None:
        """Run after `result.json` is written; `study.interrupted` tells whether cells are left."""
