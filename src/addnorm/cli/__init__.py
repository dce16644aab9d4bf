"""The command line, one file a verb. No file here imports torch before a command needs it."""

import sys


def run() -> int:
    """The console script; an interrupt during its imports is one, too."""
    try:
        from addnorm.cli.main import main

        return main()
    except KeyboardInterrupt:
        print("addnorm: interrupted", file=sys.stderr)
        return 130
