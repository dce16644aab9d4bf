"""A test of this installation in about a minute, without pytest: `addnorm selftest`.

`environment.py` describes the machine, `checks.py` has one function per check, `run.py` runs them.
"""

from addnorm.selftest.environment import describe_environment
from addnorm.selftest.run import CHECKS, CheckResult, run_checks

__all__ = ["CHECKS", "CheckResult", "describe_environment", "run_checks"]
