"""TODO interop/families."""
