"""What runs in the innermost loops: an eager definition first, a faster one second."""
