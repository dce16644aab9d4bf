"""Run the checks, one after the other; a failure does not stop the others."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from addnorm.core.errors import UserError
from addnorm.selftest import checks
from addnorm.selftest.checks import CheckFailure

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
    """Yield the result of each check on a device.

    Raises:
        UserError: there is no such device
    """
    place = _parse_device(device)
    for name, check in CHECKS.items():
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


def _parse_device(device: str) -> torch.device:
    try:
        place = torch.device(device)
        torch.zeros(1, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(
            f"device: expected one of this machine, such as cpu or cuda, got {device!r} ({reason})"
        ) from None
    return place
