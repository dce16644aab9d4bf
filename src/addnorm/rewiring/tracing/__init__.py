"""Forward passes recorded as aten operations, and how weights reach norms in them."""
