"""Results as notebooks show them."""

from addnorm.core.display.html import render_html

__all__ = ["render_html"]
