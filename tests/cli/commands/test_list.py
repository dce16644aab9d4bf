"""`addnorm list`: every member is listed in every output format."""

import json

import pytest

from addnorm.cli.registries import FAMILIES, get_registry

KEYS = {
    *("name", "title", "formula", "paper", "summary", "needs", "reduces_to", "undefined"),
    *("options", "choices", "symbols", "departures", "year", "arxiv"),
    *("group", "folds_to", "warmup"),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_json_is_the_list_of_cards(addnorm, family):
    result = addnorm("list", family, "--json")
    assert (result.code, result.err) == (0, "")
    cards = json.loads(result.out, parse_constant=pytest.fail)
    assert [card["name"] for card in cards] == list(get_registry(family))
    assert all(set(card) == KEYS for card in cards)


def test_registries_have_minimum_sizes():
    assert len(get_registry("norms")) >= 14
    assert len(get_registry("wirings")) >= 30


@pytest.mark.parametrize("family", FAMILIES)
def test_pipe_gets_one_line_per_member(addnorm, monkeypatch, family):
    monkeypatch.setenv("COLUMNS", "30")  # ignored without a terminal
    lines = addnorm("list", family).out.splitlines()
    cards = get_registry(family).cards()
    assert len(lines) == len(cards)
    for line, card in zip(lines, cards, strict=True):
        assert line.split()[0] == card.name
        assert all(text in line for text in (card.title, card.formula, card.paper))
        assert line.isascii() or not card.paper.isascii()
        assert line == line.rstrip()


@pytest.mark.parametrize("columns", [30, 40, 60, 64, 80, 90, 120, 200])
@pytest.mark.parametrize("family", FAMILIES)
def test_terminal_output_fits_and_is_complete(terminal, family, columns):
    result = terminal(columns, "list", family)
    assert max(map(len, result.out.splitlines())) <= columns
    assert "…" not in result.out
    words = result.out.split()
    for card in get_registry(family).cards():
        if len(card.name) <= columns:
            assert card.name in words
        else:  # folded: the pieces are on consecutive lines
            assert card.name in "".join(words)
        assert set("".join(card.formula.split())) <= set(result.out)


def test_terminal_output_contains_whole_formulas(terminal):
    """Formulas are wrapped, not shortened."""
    card = get_registry("norms").card("layer")
    for columns in (40, 60):
        assert card.formula in " ".join(terminal(columns, "list", "norms").out.split())
    assert card.formula in terminal(120, "list", "norms").out


def test_families_are_counted_without_argument(addnorm):
    result = addnorm("list")
    assert [line.split()[:2] for line in result.out.splitlines()] == [
        [family, str(len(get_registry(family)))] for family in FAMILIES
    ]
    assert json.loads(addnorm("list", "--json").out)[0] == {
        "family": "norms",
        "count": len(get_registry("norms")),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nroms"], "unknown family 'nroms'; did you mean 'norms'"),
        (["wiring"], "unknown family 'wiring'; did you mean 'wirings'?"),
        ([""], "unknown family ''"),
        (["norms", "wirings"], "unexpected extra argument"),
        (["--jason"], "No such option: --jason"),
    ],
)
def test_invalid_arguments_are_one_line_errors(addnorm, arguments, message):
    result = addnorm("list", *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("addnorm: ")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_members_are_grouped_in_a_didactic_order(addnorm, terminal):
    groups = [card.group for card in get_registry("wirings").cards()]
    assert list(dict.fromkeys(groups)) == [
        *("classic", "placement", "scaled", "norm-free", "learned", "dense", "multi-stream"),
        "random depth",
    ]
    assert all(line.endswith(g) for line, g in zip(names_and_lines(addnorm), groups, strict=True))
    heading = terminal(120, "list", "wirings").out.splitlines()
    assert "classic" in [line.strip() for line in heading]


def names_and_lines(addnorm, *arguments):
    return addnorm("list", "wirings", *arguments).out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--needs-no-warmup"], {"rezero", "skip_init", "t_fixup", "ngpt"}),
        (["--folds-to", "post_ln"], {"deepnorm", "admin"}),
        (
            ["--folds-to", "pre_ln"],
            {"layer_scale", "ln_scaling", "scaled", "drop_path", "layer_drop"},
        ),
        (["--folds-to", "none", "--year", "2019"], {"fixup"}),
    ],
)
def test_filters_select_by_the_facts_of_cards(addnorm, arguments, names):
    assert {line.split()[0] for line in names_and_lines(addnorm, *arguments)} == names
    cards = json.loads(addnorm("list", "wirings", "--json", *arguments).out)
    assert {card["name"] for card in cards} == names


def test_year_selects_in_every_family(addnorm):
    for family in ("norms", "wirings", "activations"):
        cards = json.loads(addnorm("list", family, "--year", "2024", "--json").out or "[]")
        expected = [card.name for card in get_registry(family).cards() if card.year == 2024]
        assert [card["name"] for card in cards] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["wirings", "--year", "1950"], "no wirings meet these conditions"),
        (["norms", "--needs-no-warmup"], "expected the family wirings"),
        (["--folds-to", "pre_ln", "--year", "1999"], "no wirings meet these conditions"),
        (["--year", "1066"], "no members meet these conditions"),
        (["wirings", "--folds-to", "b2t"], "--folds-to: expected one of none, post_ln, pre_ln"),
    ],
)
def test_filters_without_members_are_one_line_errors(addnorm, arguments, message):
    result = addnorm("list", *arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err and result.err.count("\n") == 1


def test_year_without_a_family_lists_members_of_all_families(addnorm):
    cards = json.loads(addnorm("list", "--year", "2025", "--json").out)
    names = {card["name"]: card["group"] for card in cards}
    assert names["dyt"] == "norms" and names["mudd"] == "wirings" and names["muon"] == "optimizers"
    assert {card["year"] for card in cards} == {2025}
