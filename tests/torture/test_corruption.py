"""Damage to every file of every folder that addnorm writes: an error in one line, or no effect.

Each case writes a folder once. A trial copies it, damages one file at random and reads it again.
The reader must either raise `UserError` with a one-line message or return what it returned before.
"""

import random
import shutil
import zlib

import pytest

from addnorm.core.errors import UserError
from tests.torture.damages import DAMAGES
from tests.torture.written_folders import CASES

NOT_READ_BACK = {".lock", "report.html"}
QUICK_TRIALS, LONG_TRIALS = 1, 60
"""Trials per file by default and in the long run; the quick ones are the first of the long ones."""
SLOW_CASES = ("comparison for resume", "interrupted run", "corpus of an interrupted run")
"""Cases whose trials train."""
QUICK_CASES = [name for name in CASES if name not in (*SLOW_CASES, "table comparison")]


def damage_and_read(case, trial_folder, trials, noted):
    """Damage every file `trials` times and check each reading; return the counts by outcome."""
    shutil.rmtree(trial_folder, ignore_errors=True)
    shutil.copytree(case.folder, trial_folder)
    expected = case.read(trial_folder)
    assert expected is not None
    names = sorted(
        str(path.relative_to(case.folder))
        for path in case.folder.glob(case.files)
        if path.is_file() and path.name not in NOT_READ_BACK and path.name[0] != "."
    )
    counts = dict.fromkeys(("error", "same", "noticed"), 0)
    for name in names:
        kinds = list(DAMAGES)
        # A fixed seed for each file. Every kind of damage comes before any comes again.
        random.Random(zlib.crc32(name.encode())).shuffle(kinds)
        for trial in range(trials):
            kind, rng = kinds[trial % len(kinds)], random.Random(f"{name} {trial}")
            shutil.rmtree(trial_folder)
            shutil.copytree(case.folder, trial_folder)
            path = trial_folder / name
            before = path.read_bytes()
            after = DAMAGES[kind](before, rng) if before else b"\x00"
            path.unlink() if after is None else path.write_bytes(after)
            label = f"{name}, {kind}, trial {trial}"
            try:
                result = case.read(trial_folder)
            except UserError as error:
                assert "\n" not in str(error), label
                counts["error"] += 1
            except Exception as error:
                raise AssertionError(f"{label}: {type(error).__name__}: {error}") from error
            else:
                assert result is None or result == expected, f"{label}: another answer"
                counts["noticed" if result is None else "same"] += 1
    noted("trials", counts)
    return counts


@pytest.fixture(autouse=True)
def page_without_charts(monkeypatch):
    """Make the page of a run the data that it shows; drawing takes a second."""
    monkeypatch.setattr(
        "addnorm.report.run_page.render_run_page", lambda folder, *content: repr(content)
    )


@pytest.mark.parametrize("name", QUICK_CASES)
def test_damage_is_an_error_or_has_no_effect(name, tmp_path, record_property):
    case = CASES[name](tmp_path)
    counts = damage_and_read(case, tmp_path / "trial", QUICK_TRIALS, record_property)
    assert counts["error"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_long_campaign(name, tmp_path, record_property):
    case = CASES[name](tmp_path)
    trials = len(DAMAGES) if name in SLOW_CASES else LONG_TRIALS
    counts = damage_and_read(case, tmp_path / "trial", trials, record_property)
    print(f"{name}: {counts}")  # for the ledger, with -rP
    assert counts["error"]
