"""How exactly a device can count."""

import torch


def widest_float(device: torch.device) -> torch.dtype:
    """The widest float of a device: all but MPS have float64."""
    return torch.float32 if device.type == "mps" else torch.float64
