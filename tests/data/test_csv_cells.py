"""CSV cells that a spreadsheet would execute."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.data.csv_cells import escape_formula, unescape_formula


@pytest.mark.parametrize(
    "cell", ["=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\uff1d1"]
)
def test_formula_is_escaped(cell):
    assert escape_formula(cell) == f"'{cell}"


@pytest.mark.parametrize("cell", ["", "text", "a=b", "-1", "+2.5e-3", -1, 2.5, None, "'quoted'"])
def test_other_cells_are_unchanged(cell):
    assert escape_formula(cell) == cell


@given(st.text(alphabet="'=+-@\t\r\n1ae.", max_size=6))
def test_escaping_is_reversible(cell):
    assert unescape_formula(escape_formula(cell)) == cell
