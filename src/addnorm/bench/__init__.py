"""Bench: how fast this machine is with us and with our peers, in one run."""

from addnorm.bench.base import Bench, Row, Ways, keep_memory, measured
from addnorm.bench.limits import Limits, limits

__all__ = ["Bench", "Limits", "Row", "Ways", "keep_memory", "limits", "measured"]
