"""`addnorm show`: the complete card, with the values of the call."""

import json

import pytest

from addnorm.cli.registries import FAMILIES, get_registry

MEMBERS = [(family, name) for family in FAMILIES for name in get_registry(family)]


@pytest.mark.parametrize(("family", "name"), MEMBERS)
def test_complete_card_is_shown(addnorm, family, name):
    result = addnorm("show", name)
    card = get_registry(family).card(name)
    assert (result.code, result.err) == (0, "")
    texts = [card.title, card.summary, card.paper, card.undefined, *card.needs, *card.departures]
    texts += [line for line in card.formula.split("; ")]
    texts += [text for symbol in card.symbols for text in symbol]
    texts += [f"{option}=" for option in card.options]
    texts += [call for law in card.reduces_to for call in law]
    assert [text for text in texts if text not in result.out] == []
    for option in card.options.values():
        assert all(str(choice) in result.out for choice in option.choices)


@pytest.mark.parametrize(("family", "name"), MEMBERS)
def test_json_contains_card_call_and_values(addnorm, family, name):
    cards = json.loads(addnorm("show", name, "--json").out)
    (card,) = [card for card in cards if card["family"] == family]
    plain = json.loads(json.dumps(get_registry(family).card(name).to_dict()))
    assert card == plain | {"family": family, "call": name, "values": plain["options"]}


@pytest.mark.parametrize("columns", [30, 40, 60, 80, 120])
@pytest.mark.parametrize("name", ["layer", "b2t", "mhc", "drop_path", "none", "deepnorm"])
def test_output_fits_the_terminal(terminal, name, columns):
    result = terminal(columns, "show", name)
    assert max(map(len, result.out.splitlines())) <= columns
    assert "…" not in result.out


def test_call_string_shows_its_values_and_defaults(addnorm):
    out = addnorm("show", "layer( affine=False,eps=1e-6)").out
    assert out.startswith("layer(eps=1e-06, affine=False)  LayerNorm, a norm\n")
    assert "eps=1e-06        number >= 0 and <= 1e+06; default 1e-05" in out
    assert "affine=False     True or False; default True" in out
    assert "var=biased       biased or unbiased; default biased" in out
    card = json.loads(addnorm("show", "layer(eps=1e-6)", "--json").out)[0]
    assert card["call"] == "layer(eps=1e-06)"
    assert card["values"]["eps"] == 1e-6
    assert card["options"]["eps"] == 1e-5


def test_nested_call_is_shown(addnorm):
    out = addnorm("show", "drop_path(pre_ln(init=gpt2), rate=0.2)").out
    assert out.startswith("drop_path(inner=pre_ln(init=gpt2), rate=0.2)  ")
    assert "inner=pre_ln(init=gpt2)  call string; default pre_ln" in out


def test_name_in_several_families_shows_all(addnorm):
    out = addnorm("show", "none").out
    assert ", a norm\n" in out
    assert ", a wiring\n" in out


def test_option_selects_between_families(addnorm):
    """Where families share a name, only members that have the option match."""
    cards = json.loads(addnorm("show", "none", "--json").out)
    assert {card["family"] for card in cards} >= {"norms", "wirings"}
    result = addnorm("show", "none(zzz=1)")
    assert result.code == 2
    assert "norm 'none' has no option 'zzz'; it takes no options" in result.err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("postln", "unknown name 'postln'; did you mean 'post_ln'"),
        ("Post-LN", "did you mean 'post_ln'"),
        ("post_lm(init=1)", "did you mean 'post_ln'"),
        ("", "unknown name"),
        ("layer(epss=1)", "norm 'layer' has no option 'epss'; did you mean 'eps'? Options: eps="),
        (
            "layer(eps=-1)",
            "option 'eps' of norm 'layer': expected a number greater than or equal",
        ),
        ("layer(eps=open('x'))", "got open(x)"),
        ("layer(eps=1+1)", "'1+1' in 'layer(eps=1+1)' is not a literal"),
        ("layer(", "cannot parse the call string 'layer('"),
        ("layer\nrms", "unknown name"),
    ],
)
def test_unknown_name_is_a_one_line_error(addnorm, name, message):
    result = addnorm("show", name)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("addnorm: ")
    assert message in result.err
    assert result.err.count("\n") == 1
    assert len(result.err) < 300  # `addnorm list` shows the names, there are more than a hundred


@pytest.mark.parametrize("arguments", [[], ["b2t", "rms"], ["b2t", "--no"]])
def test_usage_error_mentions_help(addnorm, arguments):
    result = addnorm("show", *arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.endswith("try 'addnorm show --help'\n")
