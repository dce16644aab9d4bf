"""A fit to look at: a bar on a terminal, lines elsewhere; both on standard error."""

from collections.abc import Iterator
from contextlib import contextmanager

from addnorm.tabular.training.loop import EpochCallback

EPOCHS_PER_LINE = 10
"""Epochs between two lines, where there is no terminal."""


@contextmanager
def epoch_progress(verbose: bool | int) -> Iterator[EpochCallback | None]:
    """What tells of every epoch while the block runs; None to be quiet."""
    if not verbose:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    words = TextColumn("{task.description}")
    columns = (TextColumn("epoch"), MofNCompleteColumn(), BarColumn(), words, Left())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        line = bar.add_task("", total=None)

        def tell(epoch: int, epochs: int, row: dict[str, float]) -> None:
            valid = f", held out {row['valid']:.4f}" if "valid" in row else ""
            told = f"loss {row['train']:.4f}{valid}"
            bar.update(line, completed=epoch, total=epochs, description=told)
            if not console.is_terminal and (epoch % EPOCHS_PER_LINE == 1 or epoch == epochs):
                left = row["seconds"] / epoch * (epochs - epoch)
                console.print(f"addnorm: epoch {epoch}/{epochs}: {told}, {left:.0f} s left at most")

        yield tell
