"""Colors, fonts and symbols of every page, chart and diagram.

Colors never carry information alone. An arm has a color, a symbol and a dash pattern, all derived
from its index. An outcome has a color, a symbol and a name, and its color darkens as the outcome
worsens, so that a grayscale print stays readable.

Pages and charts refer to colors as CSS variables (`var(--blue)`, `var(--arm0)`), so one chart
serves the light and the dark theme. Diagrams are standalone SVG files and use a `Theme` directly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

FONT_FAMILY = (
    "Inter, 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
)


@dataclass(frozen=True)
class Theme:
    """Colors of a diagram or page."""

    paper: str
    """Background."""
    ink: str
    """Text."""
    quiet: str
    """Secondary text and axes."""
    line: str
    """Edges of a diagram."""
    panel: str
    """Background of a drawn layer and of form fields."""
    panel_edge: str
    fills: dict[str, tuple[str, str]]
    """Fill and border of each kind of box."""


THEMES = {
    "light": Theme(
        "#ffffff", "#1f2430", "#667085", "#475066", "#f6f7f9", "#dfe3ea",
        {
            "self": ("#fde6d2", "#d98a4a"), "cross": ("#fbdfe4", "#c9697e"),
            "ffn": ("#d8e8fb", "#5b8fd0"), "other": ("#e8e3f8", "#8a78c8"),
            "norm": ("#f8f1c4", "#b8a136"), "mix": ("#dff0e2", "#5fa36e"),
            "scale": ("#ffffff", "#98a2b3"), "learned": ("#ffffff", "#5fa36e"),
            "round": ("#ffffff", "#475066"),
        },
    ),
    "dark": Theme(
        "#0d1117", "#e6edf3", "#9aa7b5", "#a9b4c2", "#151b23", "#2b3440",
        {
            "self": ("#4a3120", "#d3905a"), "cross": ("#4a242d", "#d07f91"),
            "ffn": ("#1d3653", "#6ea3e0"), "other": ("#332b55", "#9d8bdc"),
            "norm": ("#423a12", "#c3ad4a"), "mix": ("#1b3a24", "#6cb57d"),
            "scale": ("#0d1117", "#7d8896"), "learned": ("#0d1117", "#6cb57d"),
            "round": ("#0d1117", "#a9b4c2"),
        },
    ),
}  # fmt: skip
PALETTE = {  # Okabe and Ito's color-blind-safe palette; lighter on a dark background
    "light": {"blue": "#0072b2", "orange": "#d55e00", "green": "#00805d", "purple": "#a3477f"},
    "dark": {"blue": "#56b4e9", "orange": "#f0952b", "green": "#2bc49a", "purple": "#d98cb8"},
}
ARM_COLORS = {  # after Okabe and Ito; adjusted where the original has too little contrast
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
"""Vega's symbol names, and an SVG path of each for legends outside of charts."""
DASHES = ((), (7, 3), (2, 3), (9, 3, 2, 3))
"""Stroke patterns as lengths of line and gap; the next one is used when all colors are taken."""
OUTCOME_COLORS = {  # background and text
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
    "trained": "the model learned the task",
    "stuck": "the loss stayed close to the baseline",
    "diverged": "the loss became infinite or far too large, or progress was lost again",
    "crashed": "training ended with an error",
    "cut": "stopped early, in the worse half of the arm's settings",
    "waiting": "not finished yet",
}


@dataclass(frozen=True)
class ArmStyle:
    """Color, symbol and dash pattern of one arm."""

    name: str
    index: int
    """Position among the arms of the comparison."""

    @property
    def color(self) -> str:
        """The color as a CSS variable."""
        return f"var(--arm{self.index % len(ARM_COLORS['light'])})"

    @property
    def shape(self) -> str:
        """Vega's name of the symbol."""
        return list(SYMBOL_PATHS)[self.index % len(SYMBOL_PATHS)]

    @property
    def dash(self) -> tuple[int, ...]:
        """Lengths of line and gap; empty for a solid line."""
        return DASHES[self.index // len(ARM_COLORS["light"]) % len(DASHES)]

    @property
    def swatch(self) -> Markup:
        """A short line with the arm's symbol, as SVG."""
        symbol = SYMBOL_PATHS[self.shape]
        dash = f' stroke-dasharray="{" ".join(map(str, self.dash))}"' if self.dash else ""
        return Markup(
            '<svg class="swatch" viewBox="0 -7 30 14" width="30" height="14" aria-hidden="true">'
            f'<path d="M0 0H30" stroke="{self.color}" stroke-width="2.4"{dash}/>'
            f'<path d="{symbol}" transform="translate(15 0)" fill="{self.color}"/>'
            "</svg>"
        )

    def __html__(self) -> str:
        return f'<span class="arm">{self.swatch}{escape(self.name)}</span>'


def make_arm_styles(names: Sequence[str]) -> dict[str, ArmStyle]:
    """Return the style of each arm, by name."""
    return {name: ArmStyle(name, index) for index, name in enumerate(names)}


def get_page_colors(theme: str) -> dict[str, str]:
    """Return every color of a page by the name of its CSS variable."""
    base = THEMES[theme]
    colors = {
        "paper": base.paper, "ink": base.ink, "quiet": base.quiet, "line": base.line,
        "panel": base.panel, "edge": base.panel_edge, **PALETTE[theme],
    }  # fmt: skip
    colors |= {f"arm{index}": color for index, color in enumerate(ARM_COLORS[theme])}
    for state, (background, text) in OUTCOME_COLORS[theme].items():
        colors |= {state: background, f"on-{state}": text}
    return colors


def build_css_variables() -> str:
    """Return the CSS of both themes; dark applies to screens only, so that prints stay white."""
    light, dark = (
        " ".join(f"--{name}: {color};" for name, color in get_page_colors(theme).items())
        for theme in ("light", "dark")
    )
    return (
        f":root {{ color-scheme: light; {light} }}\n"
        "@media screen and (prefers-color-scheme: dark) "
        f"{{ :root {{ color-scheme: dark; {dark} }} }}"
    )
