"""Input and output of the commands that map lines to lines, such as `translate`."""

import codecs
import contextlib
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from addnorm.data.readers.text_lines import ByteReader
    from addnorm.tasks import (
        FilledText,
        GeneratedText,
        InputWarnings,
        LabelPrediction,
        RunProtocol,
    )

Output = TypeVar("Output")

MAX_ATTENTION_EXAMPLES = 20
"""Maximum number of lines in the attention report."""


class InputLines:
    """Iterable over the lines of files, or of standard input if there are none.

    Bytes that are not UTF-8 are replaced; `invalid` counts the affected lines. A line is cut after
    a million characters; `cut` counts these. Files packed with gzip or xz are decompressed.

    Raises:
        UserError: a file does not exist, or standard input is closed
    """

    def __init__(self, files: Iterable[Path] = ()) -> None:
        from addnorm.core.errors import UserError

        self.files, self.invalid, self.cut = tuple(files), 0, 0
        for path in self.files:
            if not path.is_file():
                raise UserError(f"no lines at {path}: there is no such file; expected a text file")

    def __iter__(self) -> Iterator[str]:
        from addnorm.data.readers.text_lines import open_text

        if not self.files:
            yield from self._decode_lines(open_stdin())
        for path in self.files:
            with open_text(path) as file:
                yield from self._decode_lines(file)

    def count(self) -> int:
        """Return the number of lines of the files; standard input cannot be counted."""
        return sum(1 for _ in InputLines(self.files)) if self.files else 0

    def _decode_lines(self, file: "ByteReader") -> Iterator[str]:
        from addnorm.data.readers.text_lines import MAX_BYTES, MAX_CHARACTERS

        while data := file.readline(MAX_BYTES):
            line = data.rstrip(b"\r\n")
            while not data.endswith(b"\n") and (data := file.readline(MAX_BYTES)):
                pass  # the rest of a long line is skipped
            is_partial = len(line) == MAX_BYTES  # and may end inside a character
            try:
                text, _ = codecs.utf_8_decode(line, "strict", not is_partial)
            except UnicodeDecodeError:
                self.invalid += 1
                text, _ = codecs.utf_8_decode(line, "replace", not is_partial)
            self.cut += is_partial or len(text) > MAX_CHARACTERS
            yield text[:MAX_CHARACTERS]


def open_stdin() -> "ByteReader":
    """Return standard input as bytes; raise UserError if it is closed."""
    if sys.stdin is None or sys.stdin.closed:
        from addnorm.core.errors import UserError

        raise UserError("standard input is closed; pass a file, or redirect one with <")
    return sys.stdin.buffer


def check_prefixes(texts: InputLines, prefix_lines: InputLines) -> None:
    """Raise UserError if texts and prefixes are files with different numbers of lines."""
    if texts.files and (lines := texts.count()) != (prefixes := prefix_lines.count()):
        from addnorm.core.errors import UserError

        raise UserError(
            f"prefixes: expected one per line, {lines} in all, got {prefixes}; use empty lines "
            "where no prefix is forced"
        )


def check_attention_path(path: Path) -> None:
    """Raise UserError if the attention report cannot be written, before decoding starts."""
    from addnorm.core.errors import UserError

    reason = "it is a folder" if path.is_dir() else ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as problem:
        reason = reason or problem.strerror or str(problem)
    if reason:
        raise UserError(
            f"--attention: expected a file in a writable folder, got {path} ({reason}); try "
            "--attention attention.html"
        )


def resolve_chunk(chunk: int | None, files: Iterable[Path]) -> int:
    """Return the number of lines per chunk; by default, 1 for interactive input."""
    from addnorm.tasks.line_inference import LINES_PER_CHUNK

    if chunk is not None:
        return chunk
    is_interactive = not tuple(files) and sys.stdin is not None and sys.stdin.isatty()
    return 1 if is_interactive else LINES_PER_CHUNK


def open_run(folder: Path, device: str, *, average: int | None = None) -> "RunProtocol":
    """Open a trained run, or an exported one; warn if the best checkpoint is damaged."""
    from addnorm.core.errors import UserError
    from addnorm.exporters.report import is_export
    from addnorm.train.trained_run import TrainedRun

    if is_export(folder):
        from addnorm.exporters.exported_run import open_exported_run

        if average is not None:
            raise UserError(f"--average: expected a run, got the export {folder}")
        return open_exported_run(folder)
    run = TrainedRun.open(folder, device=device, average=average)
    if not run.is_best:
        print(
            f"addnorm: the best checkpoint of {folder} is damaged; using step {run.step}",
            file=sys.stderr,
        )
    return run


def write_line(*cells: object) -> None:
    """Write cells separated by tabs as one line, and flush; line breaks and tabs are escaped."""
    sys.stdout.write("\t".join(escape_whitespace(str(cell)) for cell in cells) + "\n")
    sys.stdout.flush()


def write_record(record: dict[str, Any]) -> None:
    """Write a JSON object as one line, and flush."""
    sys.stdout.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def escape_whitespace(text: str) -> str:
    """Return the text with line breaks and tabs escaped."""
    return text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def write_outputs(number: int, line: str, outputs: "list[GeneratedText]", *, form: str) -> None:
    """Write the outputs for an input line, best first.

    Args:
        number: number of the input line, from 1
        line: the input line
        outputs: outputs, best first
        form: `text` writes the best text; `scores` its score and text; `nbest` a line with number,
            score and text per output; `json` a JSON object with all outputs
    """
    if form == "json":
        records = [
            {
                "text": each.text,
                "score": each.score,
                "length": each.length,
                "ended": each.ended,
            }
            for each in outputs
        ]
        write_record({"line": number, "input": line, "answers": records})
    elif form == "nbest":
        for each in outputs:
            write_line(number, f"{each.score:.4f}", each.text)
    elif form == "scores" and outputs[0].text:
        write_line(f"{outputs[0].score:.4f}", outputs[0].text)
    else:
        write_line(outputs[0].text)


def pair_with_lines(
    lines: Iterable[str], compute: "Callable[[Iterator[str]], Iterable[Output]]"
) -> "Iterator[tuple[str, Output]]":
    """Yield each line with its output; lines are buffered only until their output arrives."""
    inputs, echo = itertools.tee(lines)
    return zip(echo, compute(inputs), strict=True)


def print_warnings(warnings: "InputWarnings", *lines: InputLines) -> None:
    """Print to standard error how many lines were truncated or not UTF-8."""
    invalid = sum(each.invalid for each in lines)
    if warnings.num_truncated:
        print(
            f"addnorm: {warnings.num_truncated} of {warnings.num_lines} lines were too long and "
            "truncated",
            file=sys.stderr,
        )
    if warnings.num_unmasked:
        print(
            f"addnorm: {warnings.num_unmasked} of {warnings.num_lines} lines have no <mask>; "
            "nothing was filled in",
            file=sys.stderr,
        )
    if cut := sum(each.cut for each in lines):
        print(
            f"addnorm: {cut} of {warnings.num_lines} lines were cut after a million characters",
            file=sys.stderr,
        )
    if invalid:
        print(
            f"addnorm: {invalid} of {warnings.num_lines} lines were not UTF-8; invalid bytes were "
            "replaced",
            file=sys.stderr,
        )


def run_lines(
    run: "RunProtocol",
    outputs: "Iterable[tuple[str, Any]]",
    write: Callable[[int, str, Any], None],
    *,
    description: str,
    attention: Path | None,
) -> None:
    """Write each output as soon as it is computed, then the attention report if requested.

    Args:
        run: the trained run
        outputs: pairs of input line and output
        write: called with the number of the line, the line and the output
        description: label of the progress bar
        attention: file of the attention report; None for no report
    """
    if attention is not None:
        from addnorm.tasks.attention_maps import get_observable_model

        check_attention_path(attention)
        get_observable_model(run)
    examples: list[GeneratedText | LabelPrediction | FilledText] = []
    number = 0
    with progress_bar(description, shares_terminal=True) as tick:
        for number, (line, output) in enumerate(outputs, start=1):
            write(number, line, output)
            tick(1, None)
            first = output[0] if isinstance(output, list) else output
            if attention is not None and len(examples) < MAX_ATTENTION_EXAMPLES and first.tokens:
                examples.append(first)
    if attention is not None:
        from addnorm.report.attention_page import write_attention_page
        from addnorm.tasks.attention_maps import attention_examples

        write_attention_page(attention, attention_examples(run, examples))
        count = f"{len(examples)} of {number} lines"
        print(f"addnorm: wrote attention maps of {count} to {attention}", file=sys.stderr)


@contextlib.contextmanager
def progress_bar(
    description: str, *, shares_terminal: bool
) -> Iterator[Callable[[int, int | None], object]]:
    """Show a progress bar on standard error, if that is a terminal.

    Yields a function of (newly finished items, total or None).

    Args:
        description: label of the bar
        shares_terminal: whether the command writes to standard output meanwhile; then there is no
            bar if standard output is also a terminal
    """
    if not sys.stderr.isatty() or (shares_terminal and sys.stdout.isatty()):
        yield lambda count, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn(description),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=None)
        yield lambda count, total: bar.update(task, advance=count, total=total)
