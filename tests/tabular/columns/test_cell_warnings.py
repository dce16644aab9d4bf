"""Warnings about cells that are read in a way their owner should know."""

import numpy as np
import pandas as pd
import pytest

from addnorm.core.errors import TableWarning
from addnorm.tabular.columns.cell_warnings import describe_cells
from addnorm.tabular.columns.reader import read_columns
from tests.tabular.sample_tables import classifier

NUMBERS = [str(number / 4) for number in range(40)]
LABELS = ["x", "y"] * 20


def describe(kinds=None, **columns):
    return describe_cells(read_columns(pd.DataFrame(columns), kinds))


def test_messages_name_columns_and_cells():
    assert describe(age=["?", "?", "n/a", *NUMBERS]) == [
        "cells that count as missing: 'age' ('?' in 2 rows, 'n/a' in 1 row)"
    ]
    assert describe({"age": "numeric"}, age=["abc", *NUMBERS]) == [
        "cells that cannot be parsed count as missing: 'age' ('abc' in 1 row)"
    ]
    assert describe(age=["abc", "abc", *NUMBERS]) == [
        "column 'age' is read as categorical because of 'abc' in 2 rows; column_types="
        "{'age': 'numeric'} reads numbers, and these cells as missing"
    ]
    (message,) = describe(day=["01/02/2026", "03/04/2026"])
    assert "dates are read as %m/%d/%Y, but %d/%m/%Y fits them too" in message
    assert describe(city=["Rome", "Oslo", None], n=[1, 2, None]) == []


def test_many_columns_and_cells_are_summarized():
    frame = {f"c{index}": ["?", "1.5", "2.5"] for index in range(8)}
    assert describe(**frame)[0].endswith("and in 3 more columns")


def test_fit_warns_and_an_odd_cell_costs_one_cell_only():
    """Regression test: one "?" silently turned numbers into a bag of words."""
    frame = pd.DataFrame({"age": NUMBERS})
    clean = classifier(max_epochs=1).fit(frame.assign(age=frame["age"].astype(float)), LABELS)
    with pytest.warns(TableWarning, match="count as missing: 'age' \\('\\?' in 1 row\\)"):
        fitted = classifier(max_epochs=1).fit(frame.replace({"0.0": "?"}), LABELS)
    assert fitted.encoder_.kinds == clean.encoder_.kinds == ("numeric",)
    with pytest.warns(TableWarning, match="cannot be parsed count as missing: 'age' \\('abc'"):
        odd = fitted.predict_proba(pd.DataFrame({"age": ["abc", "1.5"]}))
    expected = fitted.predict_proba(pd.DataFrame({"age": [np.nan, 1.5]}))
    np.testing.assert_array_equal(odd, expected)
