"""Table of devices: memory, arithmetic and links, as their data sheets state them.

Numbers are peaks without sparsity. A step never reaches them: `EFFICIENCY` is the share that is
assumed, which measured training runs of large models come close to.
"""

import re
from dataclasses import dataclass

from addnorm.core.errors import UserError, unknown_name_message

EFFICIENCY = 0.4
"""Assumed share of the peak arithmetic that a training step reaches."""
DEVICES_PER_HOST = 8
"""Assumed number of devices that a fast link connects; larger groups use the network."""
MAX_DEVICES = 1_000_000
GB, TFLOPS = 10**9, 10**12


@dataclass(frozen=True)
class Device:
    """Capacities of an accelerator, from which a plan estimates what fits and how long it takes."""

    name: str
    memory: int
    """Size of the device's memory in bytes."""
    bfloat16: float
    """FLOPs per second with bfloat16 (float16 where that is missing), dense, tensor cores."""
    float32: float
    """FLOPs per second with float32, without reduced-precision products."""
    link: float
    """Bytes per second to other devices of the host, both directions together."""
    network: float
    """Bytes per second and device to other hosts, one direction."""
    source: str
    """Publication that states these numbers."""


def _device(
    name: str, gb: int, bf16: float, fp32: float, link: float, network: float, source: str
) -> Device:
    return Device(
        name, gb * GB, bf16 * TFLOPS, fp32 * TFLOPS, link * GB, network * GB, f"{source} data sheet"
    )


# name, memory in GB, TFLOPS in bfloat16 and float32, GB/s of link and network.
# The network is that of the vendor's system (DGX: one adapter per device), or 100 Gb/s Ethernet: an
# assumption, not a number of the data sheet. The other numbers agree with a second source:
#   v100, l4        table in github.com/winston-zhang-orz/gpu-specs (SXM2); link not compared
#   a100, -40gb     glennklockwood.com/garden/processors/A100, with 300 + 300 GB/s of NVLink
#   h100, h200      table in github.com/astroC86/gpu-datasheet, half of its rates, which are sparse;
#                   float32 and link of the h200 not compared
#   l40s            mullet.se, product 355414
#   rtx4090         165.2 and 82.6 TFLOPS in tables of peaks of several training programs
#   mi300x          1307.4 TFLOPS in the same; 7 links of 128 GB/s, emergentmind.com/topics/
#                   amd-mi300x-gpu; float32 not compared
DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        _device("v100", 32, 125, 15.7, 300, 12.5, "NVIDIA V100 SXM2"),
        _device("a100-40gb", 40, 312, 19.5, 600, 25, "NVIDIA A100 SXM"),
        _device("a100", 80, 312, 19.5, 600, 25, "NVIDIA A100 SXM"),
        _device("h100", 80, 989, 67, 900, 50, "NVIDIA H100 SXM"),
        _device("h200", 141, 989, 67, 900, 50, "NVIDIA H200 SXM"),
        _device("l4", 24, 121, 30.3, 64, 12.5, "NVIDIA L4"),
        _device("l40s", 48, 362, 91.6, 64, 12.5, "NVIDIA L40S"),
        _device("rtx4090", 24, 165, 82.6, 64, 12.5, "NVIDIA Ada GPU architecture"),
        _device("mi300x", 192, 1307, 163.4, 896, 50, "AMD Instinct MI300X"),
    )
}


def parse_devices(text: str) -> tuple[int, Device]:
    """Return number and kind of devices.

    >>> count, device = parse_devices("64xh100")
    >>> count, device.memory
    (64, 80000000000)
    """
    match = re.fullmatch(r"(?:(\d+)\s*x\s*)?([\w.-]+)", str(text).strip().lower())
    if match is None or not 1 <= int(match[1] or 1) <= MAX_DEVICES:
        raise UserError(
            f"devices: expected a number up to {MAX_DEVICES:,} and a device such as 64xh100, "
            f"got {text!r}"
        )
    if match[2] not in DEVICES:
        raise UserError(f"devices: {unknown_name_message('device', match[2], DEVICES)}")
    return int(match[1] or 1), DEVICES[match[2]]
