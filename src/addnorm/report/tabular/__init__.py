"""Pages about tables."""
