"""How a stranger's code may end, and how that is told."""

FAILED = (Exception, SystemExit)
"""What may come of code that is not ours: it may also leave the program."""


def told(problem: BaseException) -> str:
    """What went wrong, in one line.

    >>> told(ValueError("no\\n  good"))
    'ValueError: no good'
    """
    return f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"
