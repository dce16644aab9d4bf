"""Words and signs of the picture: Greek letters, numbers, formulas, names of functions."""

# ruff: noqa: RUF001 (signs that look like letters are what this file is for)

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
    """A parameter's name as one writes it: its last word, Greek where it is Greek.

    >>> symbol("alpha.3"), symbol("scales.0.weight"), symbol("mixers.2.lam_out")
    ('α', 'scales', 'λ_out')
    """
    words = [part for part in name.split(".") if not part.isdigit()]
    kept = [word for word in words if word not in ("weight", "bias")] or words or [""]
    return to_greek(kept[-1])


def to_greek(text: str) -> str:
    """Spelt letters to signs, whole words only.

    >>> greek("alpha_k * x + beta2")
    'α_k * x + β2'
    """
    letters = "|".join(GREEK)
    return re.sub(rf"(?<![A-Za-z])({letters})s?(?![A-Za-z])", lambda m: GREEK[m[1]], text)


def format_formula(text: str) -> str:
    """A card's formula for the eye."""
    text = (
        re.sub(r"\bsum(?=_)", "Σ", to_greek(text))
        .replace("<-", "←")
        .replace(" * ", " · ")
        .replace("->", "→")
    )
    return text.replace("<=", "≤").replace(">=", "≥").replace("sqrt(", "√(")


def format_factor(number: float, names: Mapping[float, str]) -> str:
    """A number, with the name the wiring has for it if it has just one.

    >>> factor(1.8612097, {1.8612097: "alpha"}), factor(0.5, {})
    ('α = 1.86', '0.5')
    """
    shown = f"{number:.3g}"
    return f"{to_greek(names[number])} = {shown}" if number in names else shown


def op_title(name: str) -> str:
    """What to write on a box for a function."""
    return _TITLES.get(name, name)
