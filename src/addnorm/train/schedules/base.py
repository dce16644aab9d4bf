"""Schedule registry: the learning rate as a pure function of the step.

A schedule returns a factor of the peak learning rate. Steps are counted from 1, the first optimizer
step, to the number of steps of the run. A schedule has no state, so a resumed run continues with
the same learning rate.

To add a schedule: a subclass of `Schedule` in `schedules.py` with `@register(Card(...))`.
"""

import math
from abc import ABC, abstractmethod
from typing import Annotated

import torch
from pydantic import Field

from addnorm.core.calls import Call
from addnorm.core.errors import UserError
from addnorm.core.plan import Plan, Shape
from addnorm.core.registry import Registry
from addnorm.wirings import make_wiring

StepsOrFraction = Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, lt=1)]
"""Number of steps (4000), or a fraction of the run (0.1)."""

registry: "Registry[Schedule]" = Registry("schedule")
register = registry.register


def make_schedule(call: str | Call) -> "Schedule":
    """Build the schedule that a call string names.

    >>> schedule = make_schedule("linear(warmup=2)")
    >>> [schedule.factor(step, 4) for step in (1, 2, 3, 4)]
    [0.5, 1.0, 0.5, 0.0]
    """
    return registry.make(call)


def recommended_schedule(*wirings: str | Call) -> str:
    """Return the schedule that the paper of a wiring, or its released code, uses.

    Of several wirings (encoder and decoder) the one with the longest warm-up decides.

    >>> recommended_schedule("rezero"), recommended_schedule("drop_path(post_ln)")
    ('cosine(warmup=0)', 'inverse_sqrt(warmup=0.2)')
    """
    # The wiring is built because the answer can depend on its options or on the wiring it wraps.
    shapes = (Shape(8, 8, heads=2, key_heads=2, head_dim=4), Shape(8, 8)) * 2
    plan = Plan("encoder_only", 2, None, ("self", "ffn"), 8, Call("layer"), shapes)
    with torch.device("meta"):
        calls = [make_wiring(wiring, plan).schedule for wiring in wirings]
    return max(calls, key=lambda call: make_schedule(call).warmup_steps(1000))


def resolve_steps(value: int | float, steps: int) -> int:
    """Convert a number of steps or a fraction of the run to steps, rounding down.

    Fractions that sum to 1 therefore never need more steps than the run has.
    """
    # The inner rounding corrects 0.29 * 100 == 28.999999999999996.
    return value if isinstance(value, int) else int(round(value * steps, 6))


class Schedule(ABC):
    """Factor of the peak learning rate at each step: a linear warm-up, then `decay_factor`."""

    warmup: int | float = 0
    """Length of the warm-up, in steps or as a fraction of the run."""

    @abstractmethod
    def decay_factor(self, step: int, *, start: int, steps: int) -> float:
        """Return the factor after the warm-up.

        Args:
            step: the step, greater than `start`
            start: first step at which the factor is 1
            steps: steps of the run
        """

    def factor(self, step: int, steps: int) -> float:
        """Return the factor at a step of a run of `steps`; it stays constant after the run."""
        self.check(steps)
        if step < 1:
            raise UserError(f"step: expected 1 or more, got {step}; steps are counted from 1")
        start = max(1, self.warmup_steps(steps))
        if step <= start:
            return step / start
        return self.decay_factor(min(step, max(steps, start)), start=start, steps=steps)

    def warmup_steps(self, steps: int) -> int:
        """Return the warm-up steps of a run of `steps`."""
        return resolve_steps(self.warmup, steps)

    def check(self, steps: int) -> None:
        """Raise UserError if a run of `steps` is too short for this schedule."""
        if steps < 1:
            raise UserError(f"steps: expected 1 or more, got {steps}")
        if self.warmup_steps(steps) > steps:
            raise UserError(
                f"a warm-up of {self.warmup} steps is longer than the run of {steps}; use fewer "
                "steps, or a fraction of the run such as warmup=0.1"
            )


registry.base = Schedule


def noam_peak(dim: int, *, warmup: int, k: float = 1.0) -> float:
    """Return k / sqrt(dim * warmup), the peak of `inverse_sqrt` in Vaswani et al. 2017.

    >>> f"{noam_peak(512, warmup=4000):.3e}"
    '6.988e-04'
    """
    return k / math.sqrt(dim * warmup)


def with_floor(floor: float, fraction: float) -> float:
    """Map a fraction from [0, 1] to [floor, 1]."""
    return floor + (1 - floor) * fraction
