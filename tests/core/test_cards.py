"""Cards: details read from the code of a member."""

import dataclasses
import json
from typing import Literal

import pytest

from addnorm.core.cards import Card, Option


def card(**rest):
    fields = {"name": "x", "title": "X", "formula": "y = x", "paper": "", "summary": "S."}
    return Card(**(fields | rest))


class Member:
    """A member.

    y = g * x

    x, y: (..., dim)
    g: scalar, starts at 1,
        not decayed
    |x|: length
    of x

    Somebody 2020. Pitfall: none.
    """

    # NOTE[DIFF]: the paper has no g,
    # we have one.
    def __init__(self, dim, *, eps: float = 1e-5, mode: Literal["a", "b"] = "a") -> None:
        self.right_rank = 1  # NOTE[DIFF]: at the end of a line


class Neighbor:
    """Another member in the same file."""

    # NOTE[DIFF]: the neighbor's own.


class Child(Member):
    """A member that shares code with another."""


def test_options_come_from_keyword_arguments():
    assert card().with_details_from(Member).options == {
        "eps": Option(1e-5, (), float),
        "mode": Option("a", ("a", "b"), Literal["a", "b"]),
    }


def test_symbols_come_from_docstring_paragraph():
    assert card().with_details_from(Member).symbols == (
        ("x, y", "(..., dim)"),
        ("g", "scalar, starts at 1, not decayed"),
        ("|x|", "length of x"),
    )


def test_departures_come_from_tagged_comments():
    notes = ("the paper has no g, we have one.", "at the end of a line")
    assert card().with_details_from(Member).departures == notes
    assert card().with_details_from(Child).departures == notes


def test_departures_of_other_classes_are_excluded():
    assert card().with_details_from(Neighbor).departures == ("the neighbor's own.",)


def test_details_may_be_missing():
    typed = {}
    exec("class Typed:\n    def __init__(self, dim) -> None: ...", {"__name__": "__main__"}, typed)
    read = card().with_details_from(typed["Typed"])
    assert (read.options, read.symbols, read.departures) == ({}, (), ())


def test_option_without_default_or_type_is_rejected():
    class NoDefault:
        def __init__(self, dim, *, eps: float) -> None: ...

    class NoType:
        def __init__(self, dim, *, eps=1) -> None: ...

    for member in (NoDefault, NoType):
        with pytest.raises(TypeError, match=r"option 'eps' of No\w+ requires a type and a default"):
            card().with_details_from(member)


@pytest.mark.parametrize(
    ("paper", "year", "arxiv"),
    [
        ("Ba et al., Layer Normalization, 2016, arXiv 1607.06450", 2016, "1607.06450"),
        ("Xiong et al., A Title, 2020, arXiv 2002.04745", 2020, "2002.04745"),
        ("arXiv 2002.04745, 2021", 2021, "2002.04745"),
        ("Somebody, A Report of 1998.", 1998, None),
        ("arXiv 1910.05895", None, "1910.05895"),
        ("", None, None),
    ],
)
def test_year_and_arxiv_number_come_from_paper(paper, year, arxiv):
    assert (card(paper=paper).year, card(paper=paper).arxiv) == (year, arxiv)


def test_card_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        card().name = "y"


def test_card_converts_to_json_data():
    plain = json.loads(
        json.dumps(card(reduces_to=(("x", "y"),)).with_details_from(Member).to_dict())
    )
    assert plain["options"] == {"eps": 1e-5, "mode": "a"}
    assert plain["choices"] == {"mode": ["a", "b"]}
    assert plain["reduces_to"] == [["x", "y"]]
    assert set(plain) == {
        *("name", "title", "formula", "paper", "summary", "needs", "reduces_to", "undefined"),
        *("options", "symbols", "departures", "choices", "year", "arxiv"),
        *("group", "folds_to", "warmup"),
    }
