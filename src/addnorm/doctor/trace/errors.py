"""How a stranger's code may end, and how that is told."""

USER_CODE_ERRORS = (Exception, SystemExit)
"""What may come of code that is not ours: it may also leave the program."""


def describe_exception(error: BaseException) -> str:
    """What went wrong, in one line.

    >>> told(ValueError("no\\n  good"))
    'ValueError: no good'
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
