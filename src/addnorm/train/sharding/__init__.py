"""Weights that processes share: FSDP, tensor parallelism, sharded checkpoints."""
