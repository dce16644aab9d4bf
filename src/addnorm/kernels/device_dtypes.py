"""Floating-point types of devices."""

import torch


def widest_float(device: torch.device) -> torch.dtype:
    """Return the widest float type of a device: float32 on MPS, float64 elsewhere."""
    return torch.float32 if device.type == "mps" else torch.float64
