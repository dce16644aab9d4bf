"""Call strings: round trips, canonical form, literals only."""

import keyword
import math
import warnings

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from addnorm.core.calls import Call
from addnorm.core.errors import UserError

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda word: not keyword.iskeyword(word)
)
literals = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.sampled_from(["True", "nan", "inf", "-inf", "a b", "it's", '"', "\n", "ﬁ", "lambda", ""]),
)


def calls(values):
    options = st.dictionaries(names, values, max_size=3)
    positional = st.lists(values, max_size=2).map(tuple)
    return st.builds(Call, names, options, positional)


values = st.recursive(
    literals,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.lists(inner, max_size=3).map(tuple), calls(inner)
    ),
    max_leaves=6,
)


@given(calls(values))
def test_formatted_call_parses_to_itself(call):
    assert Call.parse(str(call)) == call
    assert str(Call.parse(str(call))) == str(call)


FRAGMENTS = [
    *(
        "rms",
        "b2t",
        "eps",
        "inner",
        "ﬁ",
        "_",
        "None",
        "True",
        "lambda",
        "not",
        "if",
        "for",
        "yield",
    ),
    *("(", ")", "()", "[", "]", "{", "}", ",", "=", ":", ".", "*", "**", "-", "+", "@", ":="),
    *("1", "0", "1e-6", "1e999", "0x1f", "1j", "1_0", "'a'", '"', "'", "b''", "f'{x}'", "..."),
    *(" ", "\n", "\t", "\\", "\0", "#", "\ud800", "\ufeff"),
]


@given(st.text() | st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join))
@example("b2t(init=dyt())")
@example("x(a=[y(), (z(),)])")
@example("x(a=0x" + "f" * 5000 + ")")
@example("x(a=-0x" + "f" * 5000 + ")")
def test_any_text_is_rejected_or_round_trips(text):
    try:
        call = Call.parse(text)
    except UserError as refusal:
        assert str(refusal).isprintable()
        return
    assert Call.parse(str(call)) == call
    assert str(Call.parse(str(call))) == str(call)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        "x(a=" + "[" * 1000 + "]" * 1000 + ")",
        "x" + "()" * 100_000,
        "x(y=" * 1000 + "1" + ")" * 1000,
        "x(a=" + "-" * 100_000 + "1)",
        "x(a=" + "y." * 100_000 + "z)",
        "x(a=" + "1+" * 100_000 + "1)",
        "x(a=" + "not " * 100_000 + "1)",
    ],
    ids=lambda text: text[:8],
)
def test_deep_nesting_is_rejected_in_one_short_line(text):
    with pytest.raises(UserError) as caught:
        Call.parse(text)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 2100


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("rms", "rms"),
        ("  rms  ", "rms"),
        ("rms()", "rms"),
        ("layer( eps = 0.000001,affine=False )", "layer(eps=1e-06, affine=False)"),
        ("layer(\n  eps=1e-6,\n)", "layer(eps=1e-06)"),
        ("x(a='word')", "x(a=word)"),
        ("x(a='two words')", "x(a='two words')"),
        ("x(a='True')", "x(a='True')"),
        ("x(-1, +0.5)", None),
        ("x(-1, b=-0.5)", "x(-1, b=-0.5)"),
        ("x(a=(1,))", "x(a=(1,))"),
        ("x(a=(ffn, self))", "x(a=(ffn, self))"),
        ("x(a=[])", "x(a=[])"),
        ("x(a=1e999)", "x(a=1e999)"),
        ("x(y(z(w=1)))", "x(y(z(w=1)))"),
    ],
)
def test_formatting_is_canonical(text, same):
    if same is None:
        with pytest.raises(UserError, match="not a literal"):
            Call.parse(text)
    else:
        assert str(Call.parse(text)) == same


def test_infinity_round_trips():
    back = Call.parse(str(Call("clip", {"at": -math.inf})))
    assert back.options["at"] == -math.inf


def test_parse_returns_call_unchanged():
    call = Call("rms", {"eps": 1e-6})
    assert Call.parse(call) is call


def test_equal_calls_have_equal_hashes():
    one, other = Call("x", {"a": 1, "b": 2.0}), Call("x", {"b": 2, "a": True})
    assert one == other
    assert hash(one) == hash(other)
    assert len({one, other}) == 1


NOT_LITERALS = [
    "x(a=b.c)",
    "x(a=lambda: 1)",
    "x(a=[i for i in y])",
    "x(a={i: 1 for i in y})",
    "x(a=f'{y}')",
    "x(a=1 + 1)",
    "x(a=1 if y else 2)",
    "x(a=not True)",
    "x(a=-True)",
    "x(a=--1)",
    "x(a=y[0])",
    "x(a=y.z())",
    "x(a=(y := 1))",
    "x(*y)",
    "x(a={})",
    "x(a={1, 2})",
    "x(a=b'bytes')",
    "x(a=1j)",
    "x(a=...)",
    "x(a=" + "-" * 500 + "1)",
    "x(a=" + "y." * 500 + "z)",
]


@pytest.mark.parametrize("text", NOT_LITERALS)
def test_non_literals_are_rejected(text):
    with pytest.raises(UserError, match=r"is not a literal; options are numbers, words"):
        Call.parse(text)


@pytest.mark.parametrize(
    "text",
    ["os.system('true')", "(lambda: 1)()", "x()()", "x[0]()", "__import__('os').system('true')"],
)
def test_only_names_can_be_called(text):
    with pytest.raises(UserError, match="is not a literal"):
        Call.parse(text)


def test_names_are_not_evaluated():
    assert Call.parse("__import__('os')") == Call("__import__", {}, ("os",))


@pytest.mark.parametrize("text", ["x.y", "1", "'rms'", "None", "a - b", "[rms]", "rms, layer"])
def test_expressions_are_rejected(text):
    with pytest.raises(
        UserError, match=r"expected a name or a call, got .*; write a name with options"
    ):
        Call.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "x(",
        "x)",
        "x(a=)",
        "x(a=1",
        "x y",
        "x; y",
        "x\ny",
        "import os",
        "a\0b",
        "x(a=1, 2)",
        "x(" * 2000 + ")" * 2000,
        "x(a=" + "9" * 5000 + ")",
    ],
)
def test_syntax_errors_are_rejected(text):
    with pytest.raises(UserError, match=r"cannot parse the call string"):
        Call.parse(text)


def test_duplicate_option_is_rejected():
    # Python's own parser says so before ours can.
    with pytest.raises(UserError, match=r"cannot parse|passes 'eps' twice"):
        Call.parse("rms(eps=1, eps=2)")


def test_double_star_is_rejected():
    with pytest.raises(UserError, match=r"uses \*\*"):
        Call.parse("x(**y)")


@pytest.mark.parametrize("value", [None, 3, 1.5, b"rms", ["rms"], {"name": "rms"}])
def test_non_string_is_rejected_with_its_type(value):
    with pytest.raises(UserError, match=f"of type {type(value).__name__}"):
        Call.parse(value)


def test_invalid_escape_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Call.parse(r"x(a='\d')").options == {"a": r"\d"}
