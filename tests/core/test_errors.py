"""Errors: suggestions for misspelled names."""

import pytest

from addnorm.core.errors import (
    ArrangementMismatchError,
    InnerNormsIgnoredWarning,
    UnknownNameError,
    UserError,
    closest_names,
    unknown_name_message,
)

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
