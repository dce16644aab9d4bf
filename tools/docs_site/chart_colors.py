"""Colors of the charts in the site: those of our reports, by the theme that the reader chose."""

from addnorm.report.theme import get_page_colors


def chart_colors_css() -> str:
    """Return the variables of both themes; furo keeps the reader's choice in `data-theme`.

    They stand at `body`, where furo defines its own, so that the choice overrules the system.
    """
    light, dark = (
        " ".join(f"--{name}: {color};" for name, color in get_page_colors(theme).items())
        for theme in ("light", "dark")
    )
    return (
        f"body {{ {light} }}\n"
        f'body[data-theme="dark"] {{ {dark} }}\n'
        "@media (prefers-color-scheme: dark) "
        f'{{ body:not([data-theme="light"]) {{ {dark} }} }}\n'
        f"@media print {{ body {{ {light} }} }}\n"
    )
