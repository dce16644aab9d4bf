"""The default device, and floating-point types of devices."""

import torch


def default_device() -> torch.device:
    """Return the device on which torch creates tensors here.

    `torch.get_default_device` of torch 2.6 does not see `with torch.device(...)`.
    """
    return torch.empty(0).device


def widest_float(device: torch.device) -> torch.dtype:
    """Return the widest float type of a device: float32 on MPS, float64 elsewhere."""
    return torch.float32 if device.type == "mps" else torch.float64


def autocast_dtype(device: str) -> torch.dtype | None:
    """Return the dtype that autocast uses on a device type; None if it is off there."""
    if not has_autocast(device) or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def has_autocast(device: str) -> bool:
    """Return whether autocast knows a device type; it does not know meta."""
    return device != "meta"
