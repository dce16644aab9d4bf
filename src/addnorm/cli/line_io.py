"""Input and output of the commands that map lines to lines, such as `translate`."""

import contextlib
import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from addnorm.tasks import (
        FilledText,
        GeneratedText,
        InputWarnings,
        LabelPrediction,
        RunProtocol,
    )

Output = TypeVar("Output")

MAX_ATTENTION_EXAMPLES = 20
"""Answers whose attention is drawn at most."""


class InputLines:
    """Lines of files, or of standard input, one after the other; what is no UTF-8 is replaced.

    invalid: how many lines had something replaced
    """

    def __init__(self, files: Iterable[Path] = ()) -> None:
        self.files, self.invalid = tuple(files), 0
        for path in self.files:
            if not path.is_file():
                from addnorm.core.errors import UserError

                raise UserError(f"no lines at {path}: there is no such file; wanted a text file")

    def __iter__(self) -> Iterator[str]:
        if not self.files:
            yield from self._decode_lines(sys.stdin.buffer)
        for path in self.files:
            from addnorm.data.readers.streams import open_text

            with open_text(path) as file:  # .gz and .xz as they are, as in `addnorm data`
                yield from self._decode_lines(file)

    def count(self) -> int:
        """How many the files have; standard input can be read only once."""
        from addnorm.data.readers.streams import open_text

        number = 0
        for path in self.files:
            with open_text(path) as file:
                number += sum(1 for _ in file)
        return number

    def _decode_lines(self, raw: Iterable[bytes]) -> Iterator[str]:
        for line in raw:
            line = line.rstrip(b"\r\n")
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError:
                self.invalid += 1
                yield line.decode("utf-8", errors="replace")


def check_prefixes(texts: InputLines, prefix_lines: InputLines) -> None:
    """Refuse files with other numbers of lines before the work; of standard input it shows late."""
    if texts.files and (lines := texts.count()) != (prefixes := prefix_lines.count()):
        from addnorm.core.errors import UserError

        raise UserError(
            f"there are {prefixes} prefixes for {lines} lines; wanted one a line, empty where "
            "nothing is to be forced"
        )


def check_attention_path(path: Path) -> None:
    """Refuse a place for a page that cannot be written to, before the work."""
    from addnorm.core.errors import UserError

    why = "it is a folder" if path.is_dir() else ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as problem:
        why = why or problem.strerror or str(problem)
    if why:
        raise UserError(
            f"--attention {path} cannot be written ({why}); wanted a file in a folder that you may "
            "write to; try --attention attention.html"
        )


def resolve_chunk(chunk: int | None, files: Iterable[Path]) -> int:
    """Lines to read before the first is answered; one where somebody types them."""
    from addnorm.tasks.lines import LINES_PER_CHUNK

    if chunk is not None:
        return chunk
    return 1 if not tuple(files) and sys.stdin.isatty() else LINES_PER_CHUNK


def open_run(folder: Path, device: str) -> "RunProtocol":
    """The run in a folder."""
    from addnorm.train.trained_run import TrainedRun

    run = TrainedRun.open(folder, device=device)
    if not run.is_best:
        print(
            f"addnorm: the best checkpoint of {folder} is damaged; answering with step {run.step}",
            file=sys.stderr,
        )
    return run


def write_line(*cells: object) -> None:
    """One line, cells between tabs; it is on its way at once. Line breaks inside become `\\n`."""
    sys.stdout.write("\t".join(escape_whitespace(str(cell)) for cell in cells) + "\n")
    sys.stdout.flush()


def write_record(record: dict[str, Any]) -> None:
    """One JSON object on a line."""
    sys.stdout.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def escape_whitespace(text: str) -> str:
    """Text without what would break the line or the columns."""
    return text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def write_answers(number: int, line: str, answers: "list[GeneratedText]", *, form: str) -> None:
    """The answers to a line.

    form: `text` the text of the best; `scores` its score before it; `nbest` every answer on a line,
        number of the line, score, text; `json` an object with all of it
    """
    if form == "json":
        told = [
            {
                "text": each.text,
                "score": each.score,
                "length": each.length,
                "ended": each.ended,
            }
            for each in answers
        ]
        write_record({"line": number, "input": line, "answers": told})
    elif form == "nbest":
        for each in answers:
            write_line(number, f"{each.score:.4f}", each.text)
    elif form == "scores" and answers[0].text:
        write_line(f"{answers[0].score:.4f}", answers[0].text)
    else:
        write_line(answers[0].text)


def pair_with_lines(
    lines: Iterable[str], answer: "Callable[[Iterator[str]], Iterable[Output]]"
) -> "Iterator[tuple[str, Output]]":
    """Each line beside its answer; lines are kept only until they are answered."""
    asked, echo = itertools.tee(lines)
    return zip(echo, answer(asked), strict=True)


def print_warnings(warnings: "InputWarnings", *lines: InputLines) -> None:
    """Say on standard error what was not taken as it stands."""
    invalid = sum(each.invalid for each in lines)
    if warnings.num_truncated:
        print(
            f"addnorm: {warnings.num_truncated} of {warnings.num_lines} lines were too long and cut",
            file=sys.stderr,
        )
    if warnings.num_unmasked:
        print(
            f"addnorm: {warnings.num_unmasked} of {warnings.num_lines} lines have no <mask>; "
            "nothing was filled in",
            file=sys.stderr,
        )
    if invalid:
        print(
            f"addnorm: {invalid} of {warnings.num_lines} lines were not UTF-8; what could not be read was "
            "replaced",
            file=sys.stderr,
        )


def run_lines(
    run: "RunProtocol",
    answers: "Iterable[tuple[str, Any]]",
    write: Callable[[int, str, Any], None],
    *,
    description: str,
    attention: Path | None,
) -> None:
    """Write the answers as they come, each with its number and line; then draw attention."""
    if attention is not None:
        check_attention_path(attention)
    drawn: list[GeneratedText | LabelPrediction | FilledText] = []
    number = 0
    with progress_bar(description, shares_terminal=True) as tick:
        for number, (line, found) in enumerate(answers, start=1):
            write(number, line, found)
            tick(1, None)
            first = found[0] if isinstance(found, list) else found
            if attention is not None and len(drawn) < MAX_ATTENTION_EXAMPLES and first.tokens:
                drawn.append(first)
    if attention is not None:
        from addnorm.report.attention_page import write_attention_page
        from addnorm.tasks.attention import attention_examples

        write_attention_page(attention, attention_examples(run, drawn))
        some = f"{len(drawn)} of {number} lines"
        print(f"addnorm: drew the attention of {some} into {attention}", file=sys.stderr)


@contextlib.contextmanager
def progress_bar(
    description: str, *, shares_terminal: bool
) -> Iterator[Callable[[int, int | None], object]]:
    """A bar on standard error, if that is a terminal; call what comes back with how many more, and
    how many there are, if that is known.

    shares: whether standard output goes on meanwhile, so that a bar would be in its way where
        both are the same terminal
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
