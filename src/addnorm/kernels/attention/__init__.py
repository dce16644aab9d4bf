"""Attention kernels.

`varlen` computes attention over packed sequences and chooses between `native`, the C library with
gradients, torch's FlashAttention on a GPU, and `reference`, which pads. `decode` is a forward-only
kernel for incremental decoding.
"""
