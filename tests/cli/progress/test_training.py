"""What `addnorm train` shows: nothing cut at any width, and no silent moment at the end."""

import io
import math
import re

import pytest
from rich.console import Console

from addnorm.cli.progress import training as shown
from addnorm.train.train_state import Outcome, TrainState
from tests.train.cases import recipe

FACTS = {"parameters": 1234, "device": "cpu", "recommended": ""}


@pytest.fixture(name="bar")
def bar_fixture(tmp_path, monkeypatch):
    """A bar at step 450 of some, on a terminal of so many columns."""
    bars = []

    def make(columns, *, steps=1500, loss=3.25, rate=12_345.0):
        screen = Console(file=io.StringIO(), width=columns, force_terminal=True, color_system=None)
        monkeypatch.setattr("addnorm.cli.progress.base.Console", lambda **options: screen)
        bars.append(shown.ProgressBarReporter(recipe("corpus", steps=steps), tmp_path))
        bars[-1].on_train_start(TrainState(), FACTS)
        bars[-1].on_step_end(TrainState(step=450, tokens=10), loss)
        bars[-1].bar.update(bars[-1].task_id, rate=rate)  # else a clock would decide
        return bars[-1]

    yield make
    for bar in bars:
        bar.close()


def line_of(bar):
    """The one line of a bar, as drawn."""
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
def test_columns_go_by_importance_and_none_is_cut(bar, columns, numbers):
    line = line_of(bar(columns))
    assert re.sub("[━╸╺]+", "", line).split() == " ".join(numbers).split()
    assert len(line) <= columns


@pytest.mark.parametrize("columns", range(9, 90))
def test_at_every_width_what_is_there_is_whole(bar, columns):
    """Larger numbers, too; a bar is at least eight columns, or not there."""
    line = line_of(bar(columns, steps=2000, loss=1234.5678, rate=1_234_567.0))
    whole = {"450/2000", "loss 1234.568", "1,234,567 tok/s", "0:00:00", "-:--:--"}
    place = line.index(" 450/2000")  # behind the bar and a blank
    rest = re.sub("[━╸╺]+", " ", line)
    for words in sorted(whole, key=len, reverse=True):
        rest = rest.replace(words, "", 1)
    assert rest.strip() == ""
    assert place == 0 or (place >= shown.MIN_BAR_WIDTH + 1 and len(line) == columns)


def test_a_narrow_window_that_grows_shows_more(bar):
    made = bar(25)
    assert "tok/s" not in line_of(made)
    made.console.width = 80
    assert "12,345 tok/s" in line_of(made)


@pytest.mark.parametrize("kind", [shown.ProgressBarReporter, shown.LogLines])
def test_the_report_is_announced_before_it_is_written(kind, tmp_path, monkeypatch, capsys):
    said = []

    def write(folder):
        said.append(capsys.readouterr().err)
        return folder / "report.html"

    monkeypatch.setattr("addnorm.report.run_page.write_training_report", write)
    talk = kind(recipe("corpus"), tmp_path)
    talk.on_train_end(Outcome("done", TrainState(step=12, tokens=100, seconds=1.0)))
    talk.close()
    assert [words.strip() for words in said] == [f"addnorm: writing {tmp_path / 'report.html'}"]
    assert "ended" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [shown.ProgressBarReporter, shown.LogLines])
def test_words_can_be_said_before_it_begins(kind, tmp_path, capsys):
    """A tokenizer is trained before there is a model."""
    talk = kind(recipe("corpus"), tmp_path)
    talk.on_message("training a tokenizer")
    talk.close()
    assert capsys.readouterr().err.strip() == "addnorm: training a tokenizer"
    assert math.isnan(talk.loss)
