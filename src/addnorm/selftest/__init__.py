"""A test of this installation in about a minute, without pytest: `addnorm selftest`.

`environment.py` describes the machine, `checks.py` has one function per check, `gpu_checks.py`
those for GPUs, `run.py` runs them.
"""

from addnorm.selftest.environment import describe_environment
from addnorm.selftest.gpu_checks import GPU_CHECKS
from addnorm.selftest.run import CHECKS, CheckResult, find_device, run_checks

__all__ = [
    "CHECKS",
    "GPU_CHECKS",
    "CheckResult",
    "describe_environment",
    "find_device",
    "run_checks",
]
