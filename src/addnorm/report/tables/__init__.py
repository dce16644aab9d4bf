"""Tables of results for papers."""
