"""Progress of `addnorm train`: complete columns at any width, messages before slow steps."""

import io
import math
import re

import pytest
from rich.console import Console

from addnorm.cli.progress import training
from addnorm.train.train_state import Outcome, TrainState
from tests.train.cases import make_recipe

FACTS = {"parameters": 1234, "device": "cpu", "recommended": ""}


@pytest.fixture(name="bar")
def bar_fixture(tmp_path, monkeypatch):
    """Return a function that makes a progress bar at step 450 for a terminal width."""
    bars = []

    def make(columns, *, steps=1500, loss=3.25, rate=12_345.0):
        screen = Console(file=io.StringIO(), width=columns, force_terminal=True, color_system=None)
        monkeypatch.setattr("addnorm.report.progress.base.Console", lambda **options: screen)
        bars.append(training.ProgressBarReporter(make_recipe("corpus", steps=steps), tmp_path))
        bars[-1].on_train_start(TrainState(), FACTS)
        bars[-1].on_step_end(TrainState(step=450, tokens=10), loss)
        bars[-1].bar.update(bars[-1].task_id, rate=rate)  # independent of the clock
        return bars[-1]

    yield make
    for bar in bars:
        bar.close()


def line_of(bar):
    """Return the rendered line of a bar."""
    console = Console(file=io.StringIO(), width=bar.console.width, color_system=None)
    with console.capture() as capture:
        console.print(bar.bar.get_renderable())
    (line,) = capture.get().splitlines()
    return line.rstrip()


@pytest.mark.parametrize(
    ("columns", "numbers"),
    [
        (100, ["450/1500", "loss 3.250", "12,345 tok/s", "0:00:00", "-:--:--"]),
        (55, ["450/1500", "loss 3.250", "12,345 tok/s", "-:--:--"]),
        (40, ["450/1500", "loss 3.250", "-:--:--"]),
        (30, ["450/1500", "loss 3.250", "-:--:--"]),
        (25, ["450/1500", "loss 3.250"]),
        (12, ["450/1500"]),
    ],
)
def test_columns_are_dropped_by_priority_and_never_truncated(bar, columns, numbers):
    line = line_of(bar(columns))
    assert re.sub("[━╸╺]+", "", line).split() == " ".join(numbers).split()
    assert len(line) <= columns


@pytest.mark.parametrize("columns", range(9, 90))
def test_visible_columns_are_complete_at_every_width(bar, columns):
    """Also with large numbers; a bar has at least eight columns or is absent."""
    line = line_of(bar(columns, steps=2000, loss=1234.5678, rate=1_234_567.0))
    texts = {"450/2000", "loss 1234.568", "1,234,567 tok/s", "0:00:00", "-:--:--"}
    bar_end = line.index(" 450/2000")  # after the bar and a space
    rest = re.sub("[━╸╺]+", " ", line)
    for text in sorted(texts, key=len, reverse=True):
        rest = rest.replace(text, "", 1)
    assert rest.strip() == ""
    assert bar_end == 0 or (bar_end >= training.MIN_BAR_WIDTH + 1 and len(line) == columns)


def test_wider_terminal_shows_more_columns(bar):
    reporter = bar(25)
    assert "tok/s" not in line_of(reporter)
    reporter.console.width = 80
    assert "12,345 tok/s" in line_of(reporter)


@pytest.mark.parametrize("kind", [training.ProgressBarReporter, training.LogLines])
def test_report_is_announced_before_it_is_written(kind, tmp_path, monkeypatch, capsys):
    messages = []

    def write(folder):
        messages.append(capsys.readouterr().err)
        return folder / "report.html"

    monkeypatch.setattr("addnorm.report.run_page.write_training_report", write)
    reporter = kind(make_recipe("corpus"), tmp_path)
    reporter.on_train_end(Outcome("done", TrainState(step=12, tokens=100, seconds=1.0)))
    reporter.close()
    assert [text.strip() for text in messages] == [f"addnorm: writing {tmp_path / 'report.html'}"]
    assert "ended" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [training.ProgressBarReporter, training.LogLines])
def test_messages_are_printed_before_training_starts(kind, tmp_path, capsys):
    """The tokenizer is trained before the model exists."""
    reporter = kind(make_recipe("corpus"), tmp_path)
    reporter.on_message("training a tokenizer")
    reporter.close()
    assert capsys.readouterr().err.strip() == "addnorm: training a tokenizer"
    assert math.isnan(reporter.loss)
