"""The claims, one per file; the file name is the id of the claim."""
