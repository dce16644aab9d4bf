"""Console script: the table of commands, and exit codes for errors.

The imports below load only option definitions. Each command imports what it needs when it runs, so
that `addnorm --help` does not load torch.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Annotated, Any

import typer

from addnorm import __version__
from addnorm.cli.commands.bench import bench
from addnorm.cli.commands.claims import claims
from addnorm.cli.commands.classify import classify
from addnorm.cli.commands.compare import compare
from addnorm.cli.commands.coordcheck import coordcheck
from addnorm.cli.commands.data import data
from addnorm.cli.commands.doctor import doctor
from addnorm.cli.commands.draw import draw
from addnorm.cli.commands.evaluate import evaluate
from addnorm.cli.commands.export import export
from addnorm.cli.commands.fill_mask import fill_mask
from addnorm.cli.commands.fit import fit
from addnorm.cli.commands.generate import generate
from addnorm.cli.commands.list import list_members
from addnorm.cli.commands.plan import plan
from addnorm.cli.commands.predict import predict
from addnorm.cli.commands.report import report
from addnorm.cli.commands.rewire import rewire
from addnorm.cli.commands.selftest import selftest
from addnorm.cli.commands.show import show
from addnorm.cli.commands.train import train
from addnorm.cli.commands.translate import translate
from addnorm.cli.commands.tune import tune
from addnorm.core.errors import UserError
from addnorm.core.interrupts import clear_received_signal, interrupt_exit_code, received_signal

try:
    from typer import TyperException as CommandLineError
except ImportError:  # typer before 0.29 raises the exceptions of click
    from click import (  # type: ignore[assignment, import-not-found, unused-ignore]
        ClickException as CommandLineError,
    )

COMMANDS: dict[str, Callable[..., Any] | typer.Typer] = {
    "list": list_members,
    "show": show,
    "draw": draw,
    "compare": compare,
    "report": report,
    "coordcheck": coordcheck,
    "plan": plan,
    "claims": claims,
    "doctor": doctor,
    "data": data,
    "train": train,
    "evaluate": evaluate,
    "translate": translate,
    "generate": generate,
    "classify": classify,
    "fill-mask": fill_mask,
    "fit": fit,
    "tune": tune,
    "predict": predict,
    "rewire": rewire,
    "export": export,
    "bench": bench,
    "selftest": selftest,
}
"""Commands by name, in the order of `addnorm --help`."""

EXIT_DONE, EXIT_ERROR = 0, 2
NO_MEMORY_TEXTS = (
    *("can't allocate memory", "out of memory", "Storage size calculation overflowed"),
    *("multiplication overflow", "Unable to allocate", "DefaultCPUAllocator"),
)
"""What messages of torch and numpy contain if tensors do not fit into memory."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the command line without the program name; `sys.argv` if None

    Returns:
        The exit code: 0 for success, 1 for a negative result (a failed audit, a diverged run), 2
        for an error of the user or the system, 130 after Ctrl-C, 143 after SIGTERM.
    """
    if sys.stdout is None:
        return _print_error("standard output is closed; redirect it to a file or a terminal")
    with contextlib.suppress(AttributeError):  # a replaced stdout may not be reconfigurable
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    clear_received_signal()
    try:
        code = _run(list(sys.argv[1:] if arguments is None else arguments) or ["--help"])
        sys.stdout.flush()
        return code
    except BaseException as problem:
        return _handle_exception(problem)


def _handle_exception(problem: BaseException) -> int:
    """Print one line for an error that is not a bug; return the exit code, or raise a bug again."""
    if isinstance(problem, UserError):
        return _print_error(str(problem))
    if isinstance(problem, KeyboardInterrupt) or received_signal() is not None:
        # An interrupted import of a C library can end with any exception.
        _discard_stdout()
        return _print_error("interrupted", interrupt_exit_code())
    if isinstance(problem, BrokenPipeError):
        _discard_stdout()
        return EXIT_DONE  # the reader, such as `head`, has closed the pipe
    if isinstance(problem, CommandLineError):
        context = getattr(problem, "ctx", None)
        verb = context.command_path if context else "addnorm"
        return _print_error(f"{problem.format_message().rstrip('.')}; try '{verb} --help'")
    if isinstance(problem, OSError):
        _discard_stdout()
        path = problem.filename or "a file could not be read or written"
        return _print_error(f"{path}: {problem.strerror or problem}")
    if isinstance(problem, MemoryError) or any(text in str(problem) for text in NO_MEMORY_TEXTS):
        return _print_error(
            "out of memory: expected sizes that fit into memory; reduce dim, depth, vocab, lengths "
            "or batches"
        )
    raise problem


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(_app())
    try:
        with command.make_context("addnorm", _move_plugins_first(arguments)) as context:
            command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    return EXIT_DONE


def _move_plugins_first(arguments: list[str]) -> list[str]:
    """Move `--plugin` options before the command, so that every command accepts them.

    >>> _move_plugins_first(["compare", "--plugin", "mine.py", "--seeds", "2"])
    ['--plugin', 'mine.py', 'compare', '--seeds', '2']
    """
    options, others, values = [], [], iter(arguments)
    for value in values:
        if value == "--":
            others += [value, *values]
        elif value == "--plugin":
            options += [value, *islice(values, 1)]
        elif value.startswith("--plugin="):
            options.append(value)
        else:
            others.append(value)
    return [*options, *others]


def _load_plugins(targets: list[str] | None) -> list[str] | None:
    if targets:
        from addnorm.plugins import load_plugin

        for target in targets:
            load_plugin(target)
    return targets


def _app() -> typer.Typer:
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode="rich" if sys.stdout.isatty() else None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(addnorm)
    for verb, command in COMMANDS.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=verb)
        else:
            app.command(verb)(command)
    return app


def _print_version(requested: bool) -> None:
    if requested:
        sys.stdout.write(f"addnorm {__version__}\n")
        raise typer.Exit


def addnorm(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit"
        ),
    ] = False,
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE|FILE.py",
            callback=_load_plugins,
            help="Import a module or file that registers wirings, norms, ...; also after COMMAND",
        ),
    ] = None,
) -> None:
    """Build, train and compare Transformers whose norms and wirings are chosen by name."""


def _print_error(text: str, code: int = EXIT_ERROR) -> int:
    """Print one line to standard error; return the exit code."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print("addnorm:", " ".join(text.split()), file=sys.stderr)
    return code


def _discard_stdout() -> None:
    """Redirect standard output to /dev/null if it cannot be written, so that exiting succeeds."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):  # ValueError: it was closed
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
