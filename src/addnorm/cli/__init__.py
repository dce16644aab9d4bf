"""The command line, one file a verb. No file here imports torch before a command needs it."""

import sys


def main() -> int:
    """The console script; an interrupt during its imports is one, too."""
    try:
        from addnorm.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        print("addnorm: interrupted", file=sys.stderr)
        return 130
