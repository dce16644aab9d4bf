"""Typeset formulas: the plain text of cards as MathML, which browsers draw without a script.

The plain text is written for terminals: `x <- N(x + f(x)) / sqrt(depth)`. It is parsed into
tokens, primary expressions (`x_i`, `f(x)`, `|x|`) and fractions of two of them, written as LaTeX
and converted by latex2mathml. Two or more words in a row are prose.
"""

import html
import re
from collections.abc import Iterator

from latex2mathml.converter import convert

GREEK = {
    **{name: rf"\{name}" for name in ("alpha", "beta", "gamma", "omega", "psi", "pi", "sigma")},
    "eps": r"\epsilon",
}
OPERATORS = {
    "<-": r"\leftarrow ", "->": r"\rightarrow ", "<=": r"\le ", ">=": r"\ge ", "**": "^",
    "*": r"\, ", "@": r"\, ", ".": r"\cdot ", "...": r"\ldots ",
}  # fmt: skip
TOKEN = re.compile(r"\s*(<-|->|<=|>=|\*\*|\.\.\.|\d+(?:\.\d+)?|[A-Za-z][\w']*|\S)")
CLOSING = {"(": ")", "[": "]", "|": "|"}
PROSE = {"at", "from", "with", "of", "over", "on", "inside", "where", "else", "first", "below"}
"""Words that start prose even next to a symbol: "alpha = 0 at start"."""


def typeset_pages(pages: dict[str, str]) -> None:
    """Replace the formula of every page of a wiring or norm by its typeset form."""
    for name in pages:
        if re.match(r"catalogue/(wirings|norms)/", name):
            pages[name] = re.sub(
                r"```text\n(.*?)\n```",
                lambda found: f'<div class="formula">\n{typeset(found[1])}\n</div>',
                pages[name],
                count=1,
                flags=re.DOTALL,
            )


def typeset(formula: str) -> str:
    """Return a formula as MathML, one line for each part between semicolons.

    The plain text stays in `alttext`, for screen readers and to be copied.
    """
    rows = [convert(to_latex(part), display="block") for part in formula.split(";")]
    text = html.escape(formula, quote=True)
    return "\n".join(row.replace("<math ", f'<math alttext="{text}" ', 1) for row in rows)


def to_latex(text: str) -> str:
    r"""Return one formula as LaTeX.

    >>> to_latex("x <- N(x + f(x)) / sqrt(d_i)")
    'x\\leftarrow \\frac{N(x+f(x))}{\\sqrt{d_{i}}}'
    >>> to_latex("a = 0 at start")
    'a=0\\text{ at start}'
    """
    tokens = TOKEN.findall(text)
    return "".join(_expressions(tokens, 0, len(tokens)))


def _expressions(tokens: list[str], start: int, end: int) -> Iterator[str]:
    """Yield the LaTeX of each operator, fraction and piece of prose."""
    at = start
    while at < end:
        length = _prose_length(tokens, at, end)
        if length:
            words = " ".join(tokens[at : at + length]).replace(" - ", "-").replace(" ' ", "'")
            space = " " if at > start else ""
            yield rf"\text{{{space}{words}{' ' if at + length < end else ''}}}"
            at += length
            continue
        if not _starts_primary(tokens[at]):
            yield OPERATORS.get(tokens[at], tokens[at])
            at += 1
            continue
        top, at = _primary(tokens, at, end)
        if at + 1 < end and tokens[at] == "/" and _starts_primary(tokens[at + 1]):
            bottom, at = _primary(tokens, at + 1, end)
            top = rf"\frac{{{_without_parentheses(top)}}}{{{_without_parentheses(bottom)}}}"
        elif at + 1 < end and tokens[at] == "**":
            power, at = _primary(tokens, at + 1, end)
            top = f"{top}^{{{_without_parentheses(power)}}}"
        yield top


def _primary(tokens: list[str], at: int, end: int) -> tuple[str, int]:
    """Return the LaTeX of a name, number, call or group, and the place behind it."""
    token = tokens[at]
    if token in CLOSING:
        close = _matching(tokens, at, end)
        inner = "".join(_expressions(tokens, at + 1, close))
        return f"{token}{inner}{CLOSING[token]}", close + 1
    at += 1
    if token == "sqrt" and at < end and tokens[at] == "(":
        close = _matching(tokens, at, end)
        return rf"\sqrt{{{''.join(_expressions(tokens, at + 1, close))}}}", close + 1
    latex = _name(token)
    while at < end and tokens[at] in "([":
        group, at = _primary(tokens, at, end)
        latex += group
    return latex, at


def _name(token: str) -> str:
    """Return a symbol: one letter is italic, longer names are upright, `_` starts a subscript."""
    name, _, below = token.partition("_")
    if len(name) > 3 and len(below) > 3:  # two words, such as stop_gradient
        return rf"\mathrm{{{token}}}".replace("_", r"\_")
    if name == "sum" and below:
        return rf"\sum_{{{below}}}"
    letters = name.rstrip("'")
    latex = GREEK.get(letters) or (letters if len(letters) == 1 else rf"\mathrm{{{letters}}}")
    if letters.isdigit():
        latex = letters
    latex += name[len(letters) :]
    if below:
        is_word = len(below) > 2 or below == "in"
        latex += rf"_{{\mathrm{{{below}}}}}" if is_word else f"_{{{below}}}"
    return latex


def _prose_length(tokens: list[str], at: int, end: int) -> int:
    """Return the number of tokens of prose that start here; 0 if it is a formula."""
    length = 0
    while at + length < end and re.match(r"[A-Za-z]+('\w*)?$|-$", tokens[at + length]):
        after = at + length + 1
        if (after < end and tokens[after] in "([") or tokens[at + length] in GREEK:
            break
        length += 1
    while length and tokens[at + length - 1] == "-":
        length -= 1
    # In "at the last sub-layer x <- ..." the letter before the arrow is a symbol.
    if length > 1 and tokens[at + length : at + length + 1] in (["<-"], ["="]):
        length -= len(tokens[at + length - 1]) == 1
    words = tokens[at : at + length]
    is_prose = length > 1 and words[0] != "-" and any(len(word) > 2 for word in words)
    return length if is_prose or (words and words[0] in PROSE) else 0


def _starts_primary(token: str) -> bool:
    return token in CLOSING or token[0].isalnum()


def _matching(tokens: list[str], at: int, end: int) -> int:
    """Return the place of the bracket that closes the one at `at`."""
    if tokens[at] == "|":
        return tokens.index("|", at + 1, end)
    depth = 0
    for place in range(at, end):
        depth += (tokens[place] == tokens[at]) - (tokens[place] == CLOSING[tokens[at]])
        if depth == 0:
            return place
    raise ValueError(f"no closing bracket in {' '.join(tokens)!r}")


def _without_parentheses(latex: str) -> str:
    """Drop the parentheses around a whole numerator or denominator."""
    if not (latex.startswith("(") and latex.endswith(")")):
        return latex
    depth = 0
    for place, character in enumerate(latex):
        depth += (character == "(") - (character == ")")
        if depth == 0 and place < len(latex) - 1:
            return latex
    return latex[1:-1]
