"""Call strings such as `rms` or `rms(eps=1e-6)`: literals only, never evaluated."""

import ast
import keyword
from dataclasses import dataclass, field
from typing import Any

from addnorm.core.errors import UserError

HOW = "write a name with options, such as rms or rms(eps=1e-6)"


@dataclass(frozen=True)
class Call:
    """A name and its options, the one spelling of a choice in code, files, command lines and
    legends.

    >>> call = Call.parse("layer( eps = 0.000001,affine=False )")
    >>> str(call)
    'layer(eps=1e-06, affine=False)'
    >>> Call.parse(str(call)) == call
    True

    A bare word is a string, and a call may stand inside a call:

    >>> Call.parse("drop_path(pre_ln(init=gpt2), rate=0.2)").positional[0].options
    {'init': 'gpt2'}
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    positional: tuple[Any, ...] = ()

    @classmethod
    def parse(cls, text: "str | Call") -> "Call":
        """Read a call string; whatever is not a literal is refused."""
        if isinstance(text, Call):
            return text
        if not isinstance(text, str):
            raise UserError(
                f"a call string is wanted, got {text!r} of type {type(text).__name__}; {HOW}"
            )
        try:
            node = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise UserError(f"cannot read the call string {text!r}; {HOW}") from None
        value = _value(node, text)
        if isinstance(value, Call):
            return value
        if isinstance(node, ast.Name):
            return cls(node.id)
        raise UserError(f"{text!r} is not the name of anything; {HOW}")

    def __str__(self) -> str:
        written = [_spell(value) for value in self.positional]
        written += [f"{name}={_spell(value)}" for name, value in self.options.items()]
        return f"{self.name}({', '.join(written)})" if written else self.name

    def __hash__(self) -> int:
        return hash(str(self))


def _value(node: ast.expr, text: str) -> Any:
    """A literal, a bare word as a string, or a call inside the call."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        options: dict[str, Any] = {}
        for option in node.keywords:
            if option.arg is None:
                raise UserError(f"{text!r} uses **; {HOW}")
            if option.arg in options:
                raise UserError(f"{text!r} gives {option.arg!r} twice; keep one of them")
            options[option.arg] = _value(option.value, text)
        return Call(node.func.id, options, tuple(_value(value, text) for value in node.args))
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise UserError(
            f"{ast.unparse(node)!r} in {text!r} is not a literal; options are numbers, words,"
            " True, False or None"
        ) from None


def _spell(value: Any) -> str:
    bare = isinstance(value, str) and value.isidentifier() and not keyword.iskeyword(value)
    return value if bare else str(value) if isinstance(value, Call) else repr(value)
