"""Narrow, dumb and missing terminals, and locales without Unicode."""

import pytest

from tests.torture.valid_commands import replace_long_work, valid_lines

ENVIRONMENTS = {
    "narrow": {"COLUMNS": "20", "TTY_COMPATIBLE": "1"},
    "one column": {"COLUMNS": "1", "TTY_COMPATIBLE": "1"},
    "absurd width": {"COLUMNS": "-5", "LINES": "x"},
    "dumb": {"TERM": "dumb", "TTY_COMPATIBLE": "1"},
    "no terminal": {"TERM": ""},
    "no color": {"NO_COLOR": "1", "TTY_COMPATIBLE": "1"},
    "C locale": {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
}
LINES = [
    *(
        ["--help"],
        ["list"],
        ["list", "norms"],
        ["list", "wirings"],
        ["show", "b2t"],
        ["claims", "list"],
    ),
    *(["compare", "--help"], ["train", "lm", "--list-keys"], ["show", "gpt2"]),
]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_output_needs_no_terminal(run, monkeypatch, name):
    for variable, value in ENVIRONMENTS[name].items():
        monkeypatch.setenv(variable, value)
    for line in LINES:
        assert run(*line).code == 0, line
    for words in (("evaluate",), ("classify",), ("data", "files")):
        replace_long_work(monkeypatch, words)
        assert run(*words, *valid_lines()[words], stdin=b"ab\n").code == 0
