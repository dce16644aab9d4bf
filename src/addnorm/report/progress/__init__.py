"""Progress of long operations: a live display on a terminal, log lines elsewhere."""
