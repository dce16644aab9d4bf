"""Call strings such as `rms` or `rms(eps=1e-6)`.

A call string is parsed as Python syntax, but only literals are accepted and nothing is evaluated.
"""

import ast
import math
import re
import warnings
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any

from addnorm.core.errors import UserError

CALL_SYNTAX_HINT = "write a name with options, such as rms or rms(eps=1e-6)"
LITERAL_TYPES = (str, int, float, bool, type(None))
MAX_INT_BITS = 1024  # Python refuses to format integers of more than 4300 digits


@dataclass(frozen=True)
class Call:
    """A name with options. Code, files, command lines and chart legends all use this notation.

    >>> call = Call.parse("layer( eps = 0.000001,affine=False )")
    >>> str(call)
    'layer(eps=1e-06, affine=False)'
    >>> Call.parse(str(call)) == call
    True

    A bare word is a string, and calls can be nested:

    >>> Call.parse("drop_path(pre_ln(init=gpt2), rate=0.2)").positional[0].options
    {'init': 'gpt2'}
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    positional: tuple[Any, ...] = ()

    @classmethod
    def parse(cls, text: "str | Call", name: str = "call") -> "Call":
        """Parse a call string; a `Call` is returned unchanged.

        Args:
            text: the call string
            name: what it stands for, such as an argument, for the message about another type

        Raises:
            UserError: the text is not a call, or an argument is not a literal
        """
        if isinstance(text, Call):
            return text
        if not isinstance(text, str):
            raise UserError(
                f"{name}: expected a call string, got {text!r} of type {type(text).__name__}; "
                f"{CALL_SYNTAX_HINT}"
            )
        source = text.strip()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about invalid escapes in string literals
                node = ast.parse(source, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise UserError(f"cannot parse the call string {text!r}; {CALL_SYNTAX_HINT}") from None
        if isinstance(node, ast.Name):
            return cls(node.id)
        if not isinstance(node, ast.Call):
            raise UserError(f"expected a name or a call, got {text!r}; {CALL_SYNTAX_HINT}")
        call: Call = _parse_value(node, source)
        return call

    def __str__(self) -> str:
        arguments = [_format_value(value) for value in self.positional]
        arguments += [f"{name}={_format_value(value)}" for name, value in self.options.items()]
        return f"{self.name}({', '.join(arguments)})" if arguments else self.name

    def __hash__(self) -> int:
        # Equal calls can differ in the order of options and in 1 versus 1.0, but not in these.
        return hash((self.name, frozenset(self.options), len(self.positional)))


def _parse_value(node: ast.expr, source: str) -> Any:
    """Return a literal, a bare word as a string, or a nested call."""
    match node:
        case ast.Name():
            return node.id
        case ast.Constant(value=int() as number) if number.bit_length() > MAX_INT_BITS:
            raise UserError(
                f"expected integers of at most {MAX_INT_BITS} bits in a call string, got one of "
                f"{number.bit_length()}"
            )
        case ast.Constant(value=float() as number) if _is_rounded_to_zero(node, source):
            raise UserError(
                "expected numbers that are 0 or at least 5e-324 in a call string, got "
                f"{ast.get_source_segment(source, node)}"
            )
        case ast.Constant() if isinstance(node.value, LITERAL_TYPES):
            return node.value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)) if (
            not isinstance(number, bool)
        ):
            return -_parse_value(node.operand, source)
        case ast.Tuple():
            return tuple(_parse_value(element, source) for element in node.elts)
        case ast.List():
            return [_parse_value(element, source) for element in node.elts]
        case ast.Call(func=ast.Name(id=name)):
            positional = tuple(_parse_value(value, source) for value in node.args)
            return Call(name, _parse_options(node, source), positional)
    # Not ast.unparse, which fails on deeply nested expressions.
    segment = ast.get_source_segment(source, node) or source
    raise UserError(
        f"{segment!r} in {source!r} is not a literal; options are numbers, words, True, False, "
        "None, and tuples or lists of them"
    )


def _is_rounded_to_zero(node: ast.Constant, source: str) -> bool:
    """Return whether a number is 0 only because it is too small for a float."""
    digits = re.split("[eE]", ast.get_source_segment(source, node) or "")[0]
    return node.value == 0 and re.search("[1-9]", digits) is not None


def _parse_options(node: ast.Call, source: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for option in node.keywords:
        if option.arg is None:
            raise UserError(f"{source!r} uses **; {CALL_SYNTAX_HINT}")
        if option.arg in options:
            raise UserError(f"{source!r} passes {option.arg!r} twice; remove one of them")
        options[option.arg] = _parse_value(option.value, source)
    return options


def _format_value(value: Any) -> str:
    if isinstance(value, Call):  # with parentheses: a bare word would be parsed as a string
        return str(value) if value.options or value.positional else f"{value.name}()"
    if isinstance(value, tuple):
        elements = [_format_value(element) for element in value]
        return f"({elements[0]},)" if len(elements) == 1 else f"({', '.join(elements)})"
    if isinstance(value, list):
        return f"[{', '.join(map(_format_value, value))}]"
    if isinstance(value, float) and math.isinf(value):
        return "1e999" if value > 0 else "-1e999"  # `inf` would be parsed as a string
    # Other names are quoted: Python normalizes non-ASCII identifiers, which changes the string.
    is_word = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value)
    return value if is_word and not iskeyword(value) else repr(value)
