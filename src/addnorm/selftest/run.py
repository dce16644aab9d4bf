"""Run the checks, one after the other; a failure does not stop the others."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from addnorm.core.errors import UserError
from addnorm.selftest import checks
from addnorm.selftest.checks import CheckFailure
from addnorm.selftest.gpu_checks import GPU_CHECKS

CHECKS: dict[str, Callable[[torch.device], str]] = {
    "kernels": checks.check_kernels,
    "wirings": checks.check_wirings,
    "training": checks.check_training,
    "decoding": checks.check_decoding,
    "export": checks.check_export,
}


@dataclass(frozen=True)
class CheckResult:
    """Outcome of one check."""

    name: str
    outcome: Literal["passed", "failed"]
    detail: str
    """What was measured, or what is wrong."""
    seconds: float


def run_checks(device: str = "cpu") -> Iterator[CheckResult]:
    """Yield the result of each check on a device; a device other than the CPU has more of them.

    Raises:
        UserError: there is no such device
    """
    place = find_device(device)
    for name, check in (CHECKS if place.type == "cpu" else CHECKS | GPU_CHECKS).items():
        start = time.perf_counter()
        try:
            with torch.random.fork_rng():
                detail = check(place)
            outcome: Literal["passed", "failed"] = "passed"
        except CheckFailure as failure:
            outcome, detail = "failed", str(failure)
        except Exception as error:  # a crash is a result, and the others still run
            outcome, detail = "failed", f"{type(error).__name__}: {error}"
        yield CheckResult(name, outcome, detail, time.perf_counter() - start)


def find_device(device: str) -> torch.device:
    """Return the device of this machine that has a name.

    Raises:
        UserError: there is no such device
    """
    present = ", ".join(_list_devices())
    try:
        place = torch.device(device)
    except RuntimeError:
        raise UserError(
            f"device: expected one of this machine ({present}), got {device!r}"
        ) from None
    if place.type == "meta":
        raise UserError("device: expected one with values, such as cpu or cuda, got 'meta'")
    try:
        torch.zeros(1, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"device: expected one of this machine ({present}), got {device!r} ({reason})"
        ) from None
    return place


def _list_devices() -> list[str]:
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]
