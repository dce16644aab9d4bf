"""Host copies: values of tensors on a device that the host knows already.

To read a value of a tensor on a GPU, the host waits until the GPU has finished everything before
it. Batches come from the host, so what training asks of them (is there padding, how long is each
sequence) needs no reading: `remember` notes the host's copy of a tensor, and `recall` finds it.

>>> mask = torch.ones(2, 3, device="meta")  # a device whose values cannot be read
>>> recall(mask) is None
True
>>> remember(mask, torch.ones(2, 3)) is mask, recall(mask).sum()
(True, tensor(6.))
"""

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

_COPIES = WeakTensorKeyDictionary()


def remember(tensor: Tensor, host: Tensor) -> Tensor:
    """Note the host's copy of a tensor until the tensor is freed; return the tensor.

    Both must keep their values. Nothing is noted for a tensor of the CPU, which is its own copy.
    """
    if tensor.device.type != "cpu":
        _COPIES[tensor] = host
    return tensor


def recall(tensor: Tensor) -> Tensor | None:
    """Return a tensor of the CPU with the same values; None if only the device knows them."""
    if tensor.device.type == "cpu":
        return tensor
    copy: Tensor | None = _COPIES.get(tensor)
    return copy


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to a device without waiting, and remember it."""
    if device.type == "cpu":
        return host
    # Only copies from pinned memory run beside the host's next operations.
    pinned = host.pin_memory() if device.type == "cuda" else host
    return remember(pinned.to(device, non_blocking=True), host)
