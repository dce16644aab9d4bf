"""Progress of a search: one line on standard error for each trial."""

from rich.console import Console

from addnorm.tabular.search.trials import COMPLETE, FAILED, Trial


class SearchProgress:
    """Prints trials as they end."""

    def __init__(self, metric: str, n_trials: int, finished: int, *, verbose: bool) -> None:
        self.metric, self.n_trials, self.verbose = metric, n_trials, verbose
        self.console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        if verbose and finished:
            self.console.print(f"addnorm: resuming after {finished} stored trials")

    def show(self, trial: Trial, best: Trial | None) -> None:
        """Print the state and score of a trial, and the best score so far."""
        if not self.verbose:
            return
        if trial.state == COMPLETE:
            result = f"{self.metric} {trial.score:.5g}"
        elif trial.state == FAILED:
            result = f"failed: {trial.error}"
        else:
            place = f"after {len(trial.scores)} splits" if trial.scores else "in the first split"
            result = f"pruned {place}"
        rows = "" if trial.fraction == 1 else f" on {trial.fraction:.0%} of the rows"
        top = "" if best is None else f"; best {best.score:.5g} (trial {best.number})"
        self.console.print(
            f"addnorm: trial {trial.number}{rows}: {result}, {sum(trial.seconds):.1f} s{top}"
        )
