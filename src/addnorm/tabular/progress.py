"""A fit to look at: one line that moves on a terminal, lines elsewhere; on standard error."""

import sys

from addnorm.tabular.fitting import Watch

EVERY = 10
"""Epochs between two lines, where there is no terminal."""


def watcher(verbose: bool | int) -> Watch | None:
    """What tells of every epoch; None to be quiet."""
    return _Line() if verbose else None


class _Line:
    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(stderr=True, highlight=False, soft_wrap=True)

    def __call__(self, epoch: int, epochs: int, row: dict[str, float]) -> None:
        left = row["seconds"] / epoch * (epochs - epoch)
        valid = f", held out {row['valid']:.4f}" if "valid" in row else ""
        words = f"epoch {epoch}/{epochs}: loss {row['train']:.4f}{valid}, {left:.0f} s left at most"
        if self.console.is_terminal:
            filled = round(20 * epoch / epochs)
            bar = "━" * filled + " " * (20 - filled)
            self.console.print(f"\r\x1b[2K{bar} {words}", end="")
            sys.stderr.flush()
        elif epoch % EVERY == 1 or epoch == epochs:
            self.console.print(f"addnorm: {words}")
