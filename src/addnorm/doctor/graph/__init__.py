"""Graph of one forward pass: nodes, operation vocabulary, and walks."""
