"""Recording of one forward pass: graph, residual adds and statistics; the model is unchanged."""
