"""Errors of user code: which exceptions to catch, and how to print them."""

USER_CODE_ERRORS = (Exception, SystemExit)
"""Exceptions that a model may raise; some call `sys.exit`."""


def describe_exception(error: BaseException) -> str:
    """Return type and message of an exception in one line.

    >>> describe_exception(ValueError("no\\n  good"))
    'ValueError: no good'
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
