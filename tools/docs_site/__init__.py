"""The documentation site: Markdown from docs/ plus generated pages, built by Sphinx."""
