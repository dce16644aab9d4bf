"""Arrangement of a stack as a tensor inside its `state_dict`.

The tensor has one number, 0 or 1, per bit of the text. It is floating point, so that code which
averages, scales or casts every tensor of a `state_dict` works on it, and the text survives that:
a bit is 1 where the number exceeds half of the largest one.
"""

from typing import Any

import torch
from torch import Tensor


def format_arrangement(arrangement: dict[str, Any]) -> str:
    """Return an arrangement as one line.

    >>> format_arrangement({"wiring": "b2t", "kinds": ["self", "ffn"]})
    'wiring=b2t kinds=self,ffn'
    """
    return " ".join(
        f"{key}={','.join(value) if isinstance(value, list) else value}"
        for key, value in arrangement.items()
    )


def encode_text(text: str) -> Tensor:
    """Return the bits of a text as zeros and ones in float32."""
    bits = "".join(f"{byte:08b}" for byte in text.encode())
    return torch.tensor([float(bit) for bit in bits], dtype=torch.float32, device="cpu")


def decode_text(state: Tensor) -> str:
    """Return the text that `encode_text` made a tensor of, also from an average of such tensors.

    Bytes, which earlier versions stored, are read too. Unreadable values give a text with U+FFFD.
    """
    if state.dtype == torch.uint8:
        return bytes(state.tolist()).decode(errors="replace")
    bits = "".join("1" if bit else "0" for bit in (state > state.max() / 2).tolist())
    codes = bytes(int(bits[start : start + 8], 2) for start in range(0, len(bits), 8))
    return codes.decode(errors="replace")
