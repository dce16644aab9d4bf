"""Schedules: the learning rate as a pure function of the step, chosen by call string.

A schedule gives a factor on the peak learning rate. Steps are counted from 1, the first update of
the optimizer, to the number of steps of the whole run. Nothing is kept between two steps, so that a
run that is resumed goes on where it was.
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

# A whole number of steps, or a share of all steps: 4000, 0.1.
StepsOrFraction = Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, lt=1)]

registry: "Registry[Schedule]" = Registry("schedule")
register = registry.register


def make_schedule(call: str | Call) -> "Schedule":
    """Build the schedule a call string names.

    >>> schedule = make_schedule("linear(warmup=2)")
    >>> [schedule.factor(step, 4) for step in (1, 2, 3, 4)]
    [0.5, 1.0, 0.5, 0.0]
    """
    return registry.make(call)


def recommended_schedule(*wirings: str | Call) -> str:
    """The schedule that goes with a wiring, as its paper or its released recipe has it.

    Of several wirings, as of an encoder and a decoder, the one that warms up longest decides.

    >>> recommended("rezero"), recommended("drop_path(post_ln)")
    ('cosine(warmup=0)', 'inverse_sqrt(warmup=0.2)')
    """
    # Built, not looked up: a wiring may answer by its options, a decorator by what it wraps.
    shapes = (Shape(8, 8, heads=2, key_heads=2, head_dim=4), Shape(8, 8)) * 2
    plan = Plan("encoder_only", 2, None, ("self", "ffn"), 8, Call("layer"), shapes)
    with torch.device("meta"):
        answers = [make_wiring(wiring, plan).schedule for wiring in wirings]
    return max(answers, key=lambda answer: make_schedule(answer).warmup_steps(1000))


def resolve_steps(value: int | float, steps: int) -> int:
    """Whole steps of a span.

    Two shares that make up a run never need more steps than it has.
    """
    return value if isinstance(value, int) else int(round(value * steps, 6))  # 0.29 * 100


class Schedule(ABC):
    """A factor on the peak learning rate for each step."""

    warmup: int | float = 0
    """Steps, or the share of all steps, in which the factor rises from 0 to 1."""

    @abstractmethod
    def decay_factor(self, step: int, *, start: int, steps: int) -> float:
        """The factor at a step behind `start`, the step at which it is 1 for the first time."""

    def factor(self, step: int, steps: int) -> float:
        """The factor at a step, from 1, of a run of `steps`; later steps are like the last."""
        self.check(steps)
        if step < 1:
            raise UserError(f"steps are counted from 1, the first update; got step {step}")
        start = max(1, self.warmup_steps(steps))
        if step <= start:
            return step / start
        return self.decay_factor(min(step, max(steps, start)), start=start, steps=steps)

    def warmup_steps(self, steps: int) -> int:
        """Steps of the warm-up in a run of `steps`."""
        return resolve_steps(self.warmup, steps)

    def check(self, steps: int) -> None:
        """Refuse a run that is too short for this schedule."""
        if steps < 1:
            raise UserError(f"a run has at least 1 step, got {steps}")
        if self.warmup_steps(steps) > steps:
            raise UserError(
                f"a warm-up of {self.warmup} steps is longer than the run of {steps}; wanted fewer "
                "steps, or a share of the run such as warmup=0.1"
            )


def noam_peak(dim: int, *, warmup: int, k: float = 1.0) -> float:
    """The peak learning rate of Vaswani et al. 2017 for `inverse_sqrt`: k / sqrt(dim * warmup).

    >>> f"{noam_peak(512, warmup=4000):.3e}"
    '6.988e-04'
    """
    return k / math.sqrt(dim * warmup)


def with_floor(floor: float, fraction: float) -> float:
    """A height from 0 to 1, on ground that stands at `floor`."""
    return floor + (1 - floor) * fraction
