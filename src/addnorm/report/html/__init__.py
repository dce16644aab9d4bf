"""Pages as plain data, rendered by the templates."""
