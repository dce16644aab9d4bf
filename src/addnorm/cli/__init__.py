"""Command line, one file per command. torch is imported only when a command needs it."""

import os
import sys


def run() -> int:
    """Run the console script, and leave the process ready to exit.

    Ctrl-C and SIGTERM end it with one line and code 130 or 143, during its imports, too.
    """
    try:
        from addnorm.core import interrupts
    except KeyboardInterrupt:
        return _print_interrupted(130)
    try:
        interrupts.install_handlers()
        from addnorm.cli.main import main
        from addnorm.cli.streams import open_standard_streams

        open_standard_streams()
        code = main()
        interrupts.ignore_signals()
        exec("")  # see _print_interrupted
        if "WORLD_SIZE" in os.environ:  # started by torchrun
            from addnorm.train.distributed import exit_if_distributed

            exit_if_distributed(code)
        return code
    except BaseException:
        # An interrupted import of a C library can end with any exception.
        if interrupts.received_signal() is None:
            raise
        interrupts.ignore_signals()
        return _print_interrupted(interrupts.interrupt_exit_code())


def _print_interrupted(code: int) -> int:
    # Python kills itself with SIGINT at exit if the interrupted code was that of an `exec`, such as
    # in dataclasses. The next `exec` clears that state.
    exec("")
    print("addnorm: interrupted", file=sys.stderr)
    return code
