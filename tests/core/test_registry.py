"""Registries: canonical calls, construction, error messages."""

import math
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.core.calls import Call
from addnorm.core.cards import Card
from addnorm.core.errors import UnknownNameError, UserError
from addnorm.core.registry import (
    Count,
    Finite,
    Fraction,
    InnerCall,
    NonNegative,
    NonNegativeInt,
    Positive,
    Registry,
)


def card(name):
    return Card(name=name, title=name, formula="y = x", paper="", summary="")


@pytest.fixture(scope="module")
def registry():
    registry = Registry("toy")

    @registry.register(card("plain"))
    class Plain:
        def __init__(
            self,
            dim: int,
            *,
            eps: Positive = 1e-5,
            affine: bool = True,
            mode: Literal["in", "out"] = "in",
            count: Count = 2,
            share: Fraction = 0.5,
            rate: float | None = None,
            sizes: tuple[int, ...] = (1, 2),
        ) -> None:
            self.given = (dim, eps, affine, mode, count, share, rate, sizes)

    @registry.register(card("bare"))
    class Bare:
        def __init__(self, dim: int) -> None:
            self.given = (dim,)

    @registry.register(card("numbers"))
    class Numbers:
        def __init__(
            self, dim: int, *, a: NonNegative = 0.0, b: Finite = 0.0, c: NonNegativeInt = 0
        ) -> None:
            self.given = (dim, a, b, c)

    @registry.register(card("around"))
    class Around:
        def __init__(self, dim: int, *, inner: InnerCall = "plain", rate: Fraction = 0.1) -> None:
            self.given = (dim, inner, rate)

    return registry


@pytest.mark.parametrize(
    ("call", "canonical"),
    [
        ("plain", "plain"),
        (" plain( ) ", "plain"),
        ("plain(eps=0.00001)", "plain"),
        ("plain(affine=True, eps=1e-05, mode=in)", None),
        ("plain(affine=True, mode='in', count=2, rate=None)", "plain"),
        ("plain(count=3, affine=False, eps=1e-6)", "plain(eps=1e-06, affine=False, count=3)"),
        ("plain(1e-6, False)", "plain(eps=1e-06, affine=False)"),
        ("plain(1e-6, mode=out)", "plain(eps=1e-06, mode=out)"),
        ("plain(eps=1)", "plain(eps=1.0)"),
        ("plain(rate=0.1)", "plain(rate=0.1)"),
        ("plain(sizes=(3,))", "plain(sizes=(3,))"),
        ("around(plain)", "around"),
        ("around('plain')", "around"),
        ("around(plain(eps=1e-5))", "around"),
        ("around(inner=plain(mode=out, eps=1e-6))", "around(inner=plain(eps=1e-06, mode=out))"),
        ("around('plain(mode=out)')", "around(inner=plain(mode=out))"),
        ("around(around(bare), rate=0)", "around(inner=around(inner=bare), rate=0.0)"),
    ],
)
def test_canonical_form(registry, call, canonical):
    if canonical is None:  # `in` is a Python keyword and must be quoted
        with pytest.raises(UserError, match="cannot parse"):
            registry.resolve(call)
        return
    resolved = registry.resolve(call)
    assert str(resolved) == canonical
    assert registry.resolve(canonical) == resolved == Call.parse(str(resolved))
    assert registry.resolve(resolved) == resolved


@given(
    eps=st.floats(min_value=1e-12, max_value=1.0),
    affine=st.booleans(),
    count=st.integers(1, 2**20),
)
def test_resolve_is_idempotent(registry, eps, affine, count):
    once = registry.resolve(Call("plain", {"count": count, "affine": affine, "eps": eps}))
    assert registry.resolve(str(once)) == once


def test_make_passes_options(registry):
    assert registry.make("plain", 8).given == (8, 1e-5, True, "in", 2, 0.5, None, (1, 2))
    assert registry.make("plain(1e-6, count=3)", 8).given[1:5] == (1e-6, True, "in", 3)
    assert registry.make("bare", 8).given == (8,)


def test_inner_call_is_passed_as_text(registry):
    assert registry.make("around", 8).given[1] == "plain"
    assert registry.make("around(plain(mode=out))", 8).given[1] == "plain(mode=out)"


def test_registry_is_ordered_by_registration(registry):
    assert list(registry) == ["plain", "bare", "numbers", "around"]
    assert [card.name for card in registry.cards()] == list(registry)
    assert len(registry) == 4
    assert "plain" in registry
    assert "other" not in registry
    assert registry.member("bare").__name__ == "Bare"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("plian", r"unknown toy 'plian'; did you mean 'plain'\? Expected one of plain, bare"),
        ("Plain", r"unknown toy 'Plain'; did you mean 'plain'"),
        ("pla-in", r"unknown toy 'pla-in'; did you mean 'plain'"),
        ("", r"unknown toy ''"),
        ("zzz", r"unknown toy 'zzz'; expected one of plain, bare, numbers, around"),
        ("zzz(eps=1)", r"unknown toy 'zzz'"),
        ("around(plian)", r"unknown toy 'plian'; did you mean 'plain'"),
        ("around(plain.x)", r"is not a literal"),
    ],
)
def test_unknown_name_gets_a_suggestion(registry, call, message):
    with pytest.raises(UserError, match=message):
        registry.make(call, 8)


@pytest.mark.parametrize("ask", ["member", "card"])
def test_unknown_member_and_card_give_the_same_error(registry, ask):
    with pytest.raises(UnknownNameError, match="did you mean 'plain'"):
        getattr(registry, ask)("plan")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("plain(epss=1)", r"toy 'plain' has no option 'epss'; did you mean 'eps'\? Options: eps=1"),
        ("plain(zzz=1)", r"has no option 'zzz'; options: eps=1e-05, affine=True, mode=in, count=2"),
        ("bare(eps=1)", r"has no option 'eps'; it takes no options"),
        ("bare(1)", r"passes more values than toy 'bare' has options; it takes no options"),
        ("plain(1e-6, eps=1e-6)", r"passes 'eps' twice; remove one of them"),
        (
            "plain(eps=0)",
            r"option 'eps' of toy 'plain': expected a number greater than 0, got 0 \(def",
        ),
        ("plain(eps=-1)", r"expected a number greater than 0, got -1"),
        ("plain(eps=True)", r"expected a valid number, got True"),
        ("plain(eps='1e-5')", r"expected a valid number, got '1e-5'"),
        ("plain(eps=nan)", r"expected a valid number, got 'nan'"),
        ("plain(eps=1e999)", r"expected a finite number, got inf"),
        ("plain(eps=None)", r"expected a valid number, got None"),
        ("plain(affine=1)", r"expected a valid boolean, got 1 \(default True\)"),
        ("plain(affine=yes)", r"expected a valid boolean, got 'yes'"),
        ("plain(count=True)", r"expected a valid integer, got True"),
        ("plain(count=2.0)", r"expected a valid integer, got 2.0"),
        ("plain(count=0)", r"expected a number greater than or equal to 1, got 0"),
        ("plain(share=1.5)", r"expected a number less than or equal to 1, got 1.5"),
        ("plain(mode=inn)", r"expected one of in, out, got 'inn' \(default in\)"),
        ("plain(mode=1)", r"expected one of in, out"),
        ("plain(rate=x)", r"expected a valid number, got 'x' \(default None\)"),
        ("plain(sizes=3)", r"expected a valid tuple, got 3"),
        ("plain(sizes=(1, x))", r"expected a valid integer"),
        ("plain(eps=bare(1))", r"expected a valid number"),
        ("numbers(a=-1)", r"expected a number greater than or equal to 0"),
        ("numbers(c=-1)", r"expected a number greater than or equal to 0"),
        ("numbers(c=None)", r"expected a valid integer"),
        ("around(3)", r"expected a call string, got 3 of type int"),
        (
            "around(plain(eps=-1))",
            r"option 'eps' of toy 'plain': expected a number greater than 0, got -1",
        ),
    ],
)
def test_invalid_option_is_rejected(registry, call, message):
    with pytest.raises(UserError, match=message):
        registry.make(call, 8)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("name", "option"), [("plain", "eps"), ("plain", "share"), ("numbers", "a"), ("numbers", "b")]
)
def test_nonfinite_numbers_are_rejected(registry, name, option, value):
    with pytest.raises(UserError, match=f"option '{option}' of toy '{name}': expected"):
        registry.resolve(Call(name, {option: value}))


def test_names_are_unique_identifiers():
    registry = Registry("toy")
    registry.register(card("x"))(type("X", (), {}))
    with pytest.raises(ValueError, match="toy 'x' is registered twice"):
        registry.register(card("x"))(type("Y", (), {}))
    with pytest.raises(ValueError, match=r"name of a toy: expected letters.* got 'x y'"):
        registry.register(card("x y"))(type("Z", (), {}))
