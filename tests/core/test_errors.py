"""Errors: readable, picklable, with suggestions for misspelled names."""

import importlib
import pickle
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from addnorm.core.errors import (
    ArrangementMismatchError,
    InnerNormsIgnoredWarning,
    UnknownNameError,
    UserError,
    closest_names,
    unknown_name_message,
)
from tests.source_tree import FILES, module_name

KNOWN = ["post_ln", "pre_ln", "b2t", "deepnorm"]


@pytest.mark.parametrize(
    ("word", "first"),
    [
        ("postln", "post_ln"),
        ("Post-LN", "post_ln"),
        ("post ln", "post_ln"),
        ("PRE_LN", "pre_ln"),
        ("deep_norm", "deepnorm"),
        ("b2", "b2t"),
    ],
)
def test_closest_name_ignores_case_and_separators(word, first):
    assert closest_names(word, KNOWN)[0] == first


@pytest.mark.parametrize("word", ["", "zzz", "日本", "-" * 1000])
def test_dissimilar_word_has_no_suggestion(word):
    assert closest_names(word, KNOWN) == []


def test_message_contains_value_suggestion_and_known_names():
    assert unknown_name_message("wiring", "postln", iter(KNOWN)) == (
        "unknown wiring 'postln'; did you mean 'post_ln'? "
        "Expected one of post_ln, pre_ln, b2t, deepnorm"
    )
    assert unknown_name_message("wiring", "zzz", []) == "unknown wiring 'zzz'; expected none"
    assert unknown_name_message("wiring", "zzz", KNOWN, choices="there are four") == (
        "unknown wiring 'zzz'; there are four"
    )


def test_user_error_is_a_value_error():
    assert issubclass(UserError, ValueError)
    assert issubclass(UnknownNameError, UserError)
    assert issubclass(ArrangementMismatchError, UserError)
    assert issubclass(InnerNormsIgnoredWarning, UserWarning)


def find_error_classes():
    """Return every exception and warning class that a module of addnorm defines."""
    classes = set()
    for path in FILES:
        name = module_name(path)
        if re.search(r"^class \w+\(\w*(Error|Exception|Warning)\)", path.read_text(), re.M):
            module = importlib.import_module(name)
            classes |= {
                value
                for value in vars(module).values()
                if isinstance(value, type) and issubclass(value, BaseException)
                if value.__module__ == name
            }
    return sorted(classes, key=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", find_error_classes(), ids=lambda cls: cls.__name__)
def test_errors_survive_pickling(cls):
    error = cls("depth: expected 2, got 3")
    copied = pickle.loads(pickle.dumps(error))
    assert type(copied) is cls
    assert str(copied) == str(error) == "depth: expected 2, got 3"
    assert repr(copied) == repr(error)


def test_every_error_class_is_found():
    assert {UserError, UnknownNameError} <= set(find_error_classes())


@given(st.text())
def test_messages_are_one_printable_line(text):
    error = UserError(f"x: expected a name, got {text}")
    assert str(error).isprintable()
    assert str(error).startswith("x: expected a name, got")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_message_that_quotes_a_tensor_or_a_long_text_stays_short():
    assert "\n" not in str(UserError(f"got {torch.randn(20, 20)}; pass a number"))
    long = str(UserError(f"got {'x' * 10**6}; pass a number"))
    assert long.startswith("got xxx")
    assert long.endswith("xxx; pass a number")
    assert len(long) < 2100
