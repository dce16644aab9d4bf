"""Command line, one file per command. torch is imported only when a command needs it."""

import sys


def run() -> int:
    """Run the console script; Ctrl-C during its imports also ends it with code 130."""
    try:
        from addnorm.cli.main import main

        return main()
    except KeyboardInterrupt:
        print("addnorm: interrupted", file=sys.stderr)
        return 130
