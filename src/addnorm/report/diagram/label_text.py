"""Texts of a diagram: Greek letters, numbers, formulas, titles of functions."""

# ruff: noqa: RUF001 (mathematical signs that resemble letters are intended)

import re
from collections.abc import Mapping

TIMES, OVER, PLUS, MINUS, SIGMOID = "×", "÷", "+", "−", "σ"

GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "eta": "η",
    "theta": "θ", "kappa": "κ", "lambda": "λ", "lam": "λ", "mu": "μ", "nu": "ν", "rho": "ρ",
    "sigma": "σ", "tau": "τ", "phi": "φ", "psi": "ψ", "omega": "ω",
}  # fmt: skip

_TITLES = {
    "sum": "Sum", "mean": "Mean", "stack": "Stack", "cat": "Concatenate", "concat": "Concatenate",
    "sigmoid": SIGMOID, "tanh": "tanh", "softmax": "Softmax", "linear": "Linear",
    "matmul": "Linear", "getitem": "Split", "chunk": "Split", "split": "Split", "unbind": "Split",
    "select": "Split", "lerp": "Interpolate", "silu": "SiLU", "gelu": "GELU", "relu": "ReLU",
}  # fmt: skip


def parameter_symbol(name: str) -> str:
    """Return the symbol of a parameter: the last part of its name, Greek letters as such.

    >>> parameter_symbol("alpha.3"), parameter_symbol("scales.0.weight")
    ('α', 'scales')
    >>> parameter_symbol("mixers.2.lam_out")
    'λ_out'
    """
    parts = [part for part in name.split(".") if not part.isdigit()]
    descriptive = [part for part in parts if part not in ("weight", "bias")]
    return to_greek((descriptive or parts or [""])[-1])


def to_greek(text: str) -> str:
    """Replace the names of Greek letters by the letters; only whole words are replaced.

    >>> to_greek("alpha_k * x + beta2")
    'α_k * x + β2'
    """
    letters = "|".join(GREEK)
    return re.sub(rf"(?<![A-Za-z])({letters})s?(?![A-Za-z])", lambda m: GREEK[m[1]], text)


def format_formula(text: str) -> str:
    """Return a card's formula with mathematical signs in place of ASCII."""
    text = (
        re.sub(r"\bsum(?=_)", "Σ", to_greek(text))
        .replace("<-", "←")
        .replace(" * ", " · ")
        .replace("->", "→")
    )
    return text.replace("<=", "≤").replace(">=", "≥").replace("sqrt(", "√(")


def format_factor(number: float, names: Mapping[float, str]) -> str:
    """Return a number with three digits, and with its name if it has one.

    >>> format_factor(1.8612097, {1.8612097: "alpha"}), format_factor(0.5, {})
    ('α = 1.86', '0.5')
    """
    shown = f"{number:.3g}"
    return f"{to_greek(names[number])} = {shown}" if number in names else shown


def op_title(name: str) -> str:
    """Return the title of the box of a function."""
    return _TITLES.get(name, name)
