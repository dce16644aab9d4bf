"""The navigation of the site: sections in reading order."""

from collections.abc import Mapping, Sequence

SECTIONS: dict[str, Sequence[str]] = {
    "Start": ("start.md",),
    "Guides": (
        *("guides/compare.md", "guides/compare-your-own.md", "guides/build-a-stack.md"),
        *("guides/watch-your-training.md", "guides/doctor.md", "guides/export.md"),
        *("guides/rewire.md", "guides/scale.md", "guides/tables.md", "guides/text.md"),
        *("guides/hugging-face.md", "guides/claims.md", "guides/plugins.md", "guides/*"),
    ),
    "Examples": ("examples/*",),
    "Explanation": (
        *("explanation/add-and-norm.md", "explanation/post-ln-and-pre-ln.md"),
        *("explanation/warm-up.md", "explanation/depth.md", "explanation/*"),
    ),
    "Catalogue": (
        *("atlas.md", "catalogue/index.md", "catalogue/presets.md", "catalogue/scales.md"),
        *("catalogue/schedules.md", "catalogue/optimizers.md", "catalogue/positions.md"),
        "catalogue/rules.md",
    ),
    "Results": ("claims/claims.md", "reproductions.md"),
    "Reference": (
        *("catalogue/commands.md", "catalogue/recipe-keys.md", "architecture/files.md"),
        "reference/*",
    ),
    "Architecture": ("architecture/overview.md", "architecture/*"),
    "Project": ("project/contributing.md", "project/*"),
}
"""Pages by caption; `folder/*` stands for the other pages of a folder, in alphabetical order."""

MEMBER_FOLDERS = {
    "catalogue/wirings/": "catalogue/index.md",
    "catalogue/norms/": "catalogue/index.md",
    "catalogue/presets/": "catalogue/presets.md",
    "catalogue/rules/": "catalogue/rules.md",
    "claims/": "claims/claims.md",
}
"""Folders with one page per member, and the page that lists them."""


def render_toctrees(sections: Mapping[str, Sequence[str]], pages: Mapping[str, str]) -> str:
    """Return hidden tables of contents that name every page once."""
    placed: set[str] = {"index.md"}
    parts = []
    for caption, patterns in sections.items():
        names: list[str] = []
        for pattern in patterns:
            folder = pattern.removesuffix("*")
            found = (
                sorted(
                    (name for name in pages if name.rpartition("/")[0] + "/" == folder),
                    key=lambda name: name.removesuffix(".md"),  # addnorm before addnorm.claims
                )
                if pattern.endswith("/*")
                else [pattern]
            )
            names += [name for name in found if name in pages and name not in placed]
            placed.update(names)
        if names:
            parts.append(toctree(names, caption=caption))
    return "\n\n" + "\n\n".join(parts) + "\n"


def toctree(names: Sequence[str], *, caption: str = "") -> str:
    """Return a hidden table of contents."""
    options = [":hidden:"] + ([f":caption: {caption}"] if caption else [])
    return "\n".join(["```{toctree}", *options, "", *names, "```"])


def add_member_toctrees(pages: dict[str, str]) -> None:
    """Place the pages of single members below the page that lists them."""
    for folder, parent in MEMBER_FOLDERS.items():
        base = parent.rpartition("/")[0] + "/"
        names = sorted(
            name.removeprefix(base)
            for name in pages
            if name.startswith(folder) and name not in ("claims/claims.md",)
        )
        pages[parent] += "\n" + toctree(names) + "\n"
