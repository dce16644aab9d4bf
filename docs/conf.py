"""Sphinx configuration of the documentation site; `make docs` runs it on build/site-source.

No extension here loads anything from the network, and the built pages do not either.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # the staged copy of sphinx_docstrings.py

import addnorm

project = "addnorm"
author = copyright = "The addnorm engineers"
release = version = addnorm.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_docstrings",
]
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline", "attrs_block", "colon_fence"]
suppress_warnings = [
    "myst.header",  # pages of the catalogue start their sections at different levels
    "misc.highlighting_failure",
    "ref.python",  # types in words, such as "array of shape (n,)", name several attributes
]
default_role = "code"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}

html_theme = "furo"
html_title = f"addnorm {release}"
html_static_path = ["_static"]
html_css_files = ["chart-colors.css", "site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
pygments_style, pygments_dark_style = "default", "monokai"
