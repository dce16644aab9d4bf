"""Pages about tables: searches and explanations."""
