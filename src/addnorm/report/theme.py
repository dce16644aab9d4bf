"""How arms and outcomes look: the same on every chart, told apart without colour too.

An arm has a colour, a symbol and a dash by its place in the comparison; an outcome has a colour, a
sign and a word, from light to dark as it gets worse, so that a grey print says the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

ARM_COLORS = {  # after Okabe and Ito; darker on white and lighter on black, where theirs fade
    "light": (
        *("#0072b2", "#d55e00", "#008a63", "#b0508c"),
        *("#1f2430", "#3f9fdb", "#b98300", "#7d8794"),
    ),
    "dark": (
        *("#4a9eea", "#ff7f32", "#2bc49a", "#dd8fbd"),
        *("#e6edf3", "#a3daf7", "#f0c33c", "#8b97a5"),
    ),
}
SYMBOL_PATHS = {
    "circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0Z",
    "square": "M-3.6-3.6h7.2v7.2h-7.2Z",
    "triangle-up": "M0-4.6L4.8 3.8h-9.6Z",
    "diamond": "M0-5.2L4.4 0L0 5.2L-4.4 0Z",
    "cross": "M-1.6-4.8h3.2v3.2h3.2v3.2h-3.2v3.2h-3.2v-3.2h-3.2v-3.2h3.2Z",
    "triangle-down": "M0 4.6L4.8-3.8h-9.6Z",
}
"""Vega's names of symbols, and how legends outside of charts draw them."""
DASHES = ((), (7, 3), (2, 3), (9, 3, 2, 3))
OUTCOME_COLORS = {  # ground and ink; the words are in SIGNS
    "light": {
        "trained": ("#d3efe2", "#0b4d38"), "stuck": ("#f4c65f", "#3d2b00"),
        "diverged": ("#b8430a", "#ffffff"), "crashed": ("#1f2430", "#ffffff"),
        "cut": ("#e4e7ec", "#475066"), "waiting": ("#ffffff", "#667085"),
    },
    "dark": {
        "trained": ("#14503c", "#c8f5e3"), "stuck": ("#d9a520", "#2b1e00"),
        "diverged": ("#ff8a4c", "#2d0f00"), "crashed": ("#e6edf3", "#0d1117"),
        "cut": ("#2b3440", "#c0cad5"), "waiting": ("#0d1117", "#9aa7b5"),
    },
}  # fmt: skip
OUTCOME_SYMBOLS = {
    "trained": "✓", "stuck": "—", "diverged": "✗", "crashed": "!", "cut": "½", "waiting": "…",
}  # fmt: skip
OUTCOME_MEANINGS = {
    "trained": "learnt the task",
    "stuck": "the loss did not get far below the baseline",
    "diverged": "the loss became infinite or far too large, or what was learnt was lost again",
    "crashed": "the training ended with an error",
    "cut": "ended early, in the worse half of its arm's settings",
    "waiting": "has not ended yet",
}


@dataclass(frozen=True)
class ArmStyle:
    """The look of one arm."""

    name: str
    index: int
    """Its place among the arms."""

    @property
    def color(self) -> str:
        """As CSS, in the colours of the theme."""
        return f"var(--arm{self.index % len(ARM_COLORS['light'])})"

    @property
    def shape(self) -> str:
        """Vega's name of its symbol."""
        return list(SYMBOL_PATHS)[self.index % len(SYMBOL_PATHS)]

    @property
    def dash(self) -> tuple[int, ...]:
        """Lengths of line and gap; empty for a whole line."""
        return DASHES[self.index // len(ARM_COLORS["light"]) % len(DASHES)]

    @property
    def swatch(self) -> Markup:
        """A piece of its line with its symbol, as SVG."""
        dash = f' stroke-dasharray="{" ".join(map(str, self.dash))}"' if self.dash else ""
        return Markup(
            '<svg class="swatch" viewBox="0 -7 30 14" width="30" height="14" aria-hidden="true">'
            f'<path d="M0 0H30" stroke="{self.color}" stroke-width="2.4"{dash}/>'
            f'<path d="{SYMBOL_PATHS[self.shape]}" transform="translate(15 0)" fill="{self.color}"/>'
            "</svg>"
        )

    def __html__(self) -> str:
        """Its swatch and its name, where a page shows it."""
        return f'<span class="arm">{self.swatch}{escape(self.name)}</span>'


def arm_styles(names: Sequence[str]) -> dict[str, ArmStyle]:
    """The look of each arm."""
    return {name: ArmStyle(name, place) for place, name in enumerate(names)}


def arm_and_outcome_colors(theme: str) -> dict[str, str]:
    """The CSS variables of arms and outcomes."""
    arms = {f"arm{place}": colour for place, colour in enumerate(ARM_COLORS[theme])}
    for state, (ground, ink) in OUTCOME_COLORS[theme].items():
        arms |= {state: ground, f"on-{state}": ink}
    return arms
