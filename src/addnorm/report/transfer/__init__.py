"""Pages on other sizes: the coordinate check, and the transfer of the learning rate."""
