"""Bytes that a device sends in one step, and the time that this takes."""

from addnorm.planning.devices import DEVICES_PER_HOST, Device


def communication_bytes(parallel: str, devices: int, *, weights: int, gradients: int) -> int:
    """Return what one device sends in a step with ring algorithms.

    ddp:  all-reduce of the gradients, 2 (n - 1) / n of their bytes
    fsdp: all-gather of the weights in forward and backward, reduce-scatter of the gradients,
          (n - 1) / n of the bytes each

    >>> communication_bytes("ddp", 4, weights=80, gradients=80)
    120
    """
    if devices == 1 or parallel == "none":
        return 0
    total = 2 * gradients if parallel == "ddp" else 2 * weights + gradients
    return total * (devices - 1) // devices


def communication_seconds(sent: int, devices: int, device: Device) -> float:
    """Return the time to send bytes: over the link within a host, else over the network."""
    is_one_host = devices <= DEVICES_PER_HOST
    return sent / (device.link / 2 if is_one_host else device.network)
