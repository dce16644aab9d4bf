"""Operators of the innermost loops: a definition in plain torch, and a native version beside it.

`library` loads the optional C library and decides whether it may take a set of tensors. Every
operator falls back to its definition where it may not, so no caller has to ask.

    add_norm/           dropout + add + norm, fused
    attention/          attention over packed sequences, and for incremental decoding
    cross_entropy       loss sums, and a linear layer with loss that never holds all logits
    cross_entropy_rows  softmax, loss and gradient of rows of logits
    dropout             dropout whose mask is recomputed in the backward
    linear              linear map without gradient
"""
