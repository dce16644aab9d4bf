"""Claims as they run, on standard error: a line for each, and the board of each comparison."""

import sys

from addnorm.claims import Claim, Result, Watch
from addnorm.claims.claim import name_of
from addnorm.cli.progress.comparison import Board, Lines
from addnorm.cli.progress.comparison import Talk as Follower
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.engines.base import Event
from addnorm.comparison.run import Audience


class Talk(Watch):
    """Says which claim is at work, and what became of it."""

    def __init__(self) -> None:
        self.boards = Boards()
        self.ended_any = False

    def began(self, claim: Claim, *, number: int, total: int) -> Audience:
        """Say which, and hand over who follows its comparisons."""
        self.said(f"claim {number} of {total}: {name_of(claim)} ({claim.how})")
        return self.boards

    def ended(self, claim: Claim, result: Result, *, again: bool) -> None:
        """Say what became of it."""
        self.ended_any = True
        why = f" ({result.why})" if result.why else ""
        took = "done already" if again else f"{result.seconds:,.0f} s"
        self.said(f"{result.claim}: {result.answer}{why}, {took}")

    def said(self, words: str) -> None:
        """On a line of its own."""
        sys.stderr.write(f"addnorm: {words}\n")
        sys.stderr.flush()

    def close(self) -> None:
        """Leave the terminal as it should be."""
        self.boards.close()


class Boards(Audience):
    """A new board for every comparison: they count cells that are not those of the next."""

    def __init__(self) -> None:
        self.board: Follower | None = None

    def began(self, study: Study, workers: int) -> None:
        """Begin anew."""
        self.close()
        self.board = Board() if sys.stderr.isatty() else Lines()
        self.board.began(study, workers)

    def happened(self, event: Event) -> None:
        """Pass it on."""
        if self.board is not None:
            self.board.happened(event)

    def ended(self, study: Study, *, interrupted: bool) -> None:
        """Pass it on."""
        if self.board is not None:
            self.board.ended(study, interrupted=interrupted)

    def close(self) -> None:
        """Also if it did not end well."""
        if self.board is not None:
            self.board.close()
