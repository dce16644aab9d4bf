"""Schedules: the learning rate as a pure function of the step, chosen by call string.

A schedule gives a factor on the peak learning rate. Steps are counted from 1, the first update of
the optimizer, to the number of steps of the whole run. Nothing is kept between two steps, so that a
run that is resumed goes on where it was.
"""

import math
from abc import ABC, abstractmethod
from typing import Annotated, Literal

import torch
from pydantic import Field

from addnorm.core.calls import Call
from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.plan import Plan, Shape
from addnorm.core.registry import Registry, Share
from addnorm.wirings import make_wiring

# A whole number of steps, or a share of all steps: 4000, 0.1.
Span = Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0, lt=1)]

registry: "Registry[Schedule]" = Registry("schedule")
register = registry.register


def make_schedule(call: str | Call) -> "Schedule":
    """Build the schedule a call string names.

    >>> schedule = make_schedule("linear(warmup=2)")
    >>> [schedule.factor(step, 4) for step in (1, 2, 3, 4)]
    [0.5, 1.0, 0.5, 0.0]
    """
    return registry.make(call)


def recommended(*wirings: str | Call) -> str:
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


def span(value: int | float, steps: int) -> int:
    """Whole steps of a span.

    Two shares that make up a run never need more steps than it has.
    """
    return value if isinstance(value, int) else int(round(value * steps, 6))  # 0.29 * 100


class Schedule(ABC):
    """A factor on the peak learning rate for each step."""

    warmup: int | float = 0
    """Steps, or the share of all steps, in which the factor rises from 0 to 1."""

    @abstractmethod
    def after(self, step: int, *, start: int, steps: int) -> float:
        """The factor at a step behind `start`, the step at which it is 1 for the first time."""

    def factor(self, step: int, steps: int) -> float:
        """The factor at a step, from 1, of a run of `steps`; later steps are like the last."""
        self.check(steps)
        if step < 1:
            raise UserError(f"steps are counted from 1, the first update; got step {step}")
        start = max(1, self.warmup_steps(steps))
        if step <= start:
            return step / start
        return self.after(min(step, max(steps, start)), start=start, steps=steps)

    def warmup_steps(self, steps: int) -> int:
        """Steps of the warm-up in a run of `steps`."""
        return span(self.warmup, steps)

    def check(self, steps: int) -> None:
        """Refuse a run that is too short for this schedule."""
        if steps < 1:
            raise UserError(f"a run has at least 1 step, got {steps}")
        if self.warmup_steps(steps) > steps:
            raise UserError(
                f"a warm-up of {self.warmup} steps is longer than the run of {steps}; wanted fewer "
                "steps, or a share of the run such as warmup=0.1"
            )


@register(
    Card(
        name="none",
        title="Constant",
        formula="factor = 1",
        paper="Robbins and Monro, A Stochastic Approximation Method, 1951",
        summary="The peak from the first step to the last.",
    )
)
class Constant(Schedule):
    """No warm-up, no decay.

    factor = 1

    factor: scalar on the peak learning rate, 1 throughout
    """

    def after(self, step: int, *, start: int, steps: int) -> float:
        """The peak."""
        return 1.0


@register(
    Card(
        name="constant",
        title="Warm-up, then constant",
        formula="factor(t) = min(t / w, 1)",
        paper=(
            "Gotmare et al., A Closer Look at Deep Learning Heuristics: Learning Rate Restarts, "
            "Warmup and Distillation, 2018, arXiv 1810.13243"
        ),
        summary="Rises linearly, then stays at the peak.",
    )
)
class WarmConstant(Schedule):
    """Rise linearly to the peak and stay there.

    factor(t) = min(t / w, 1)

    t: step from 1
    w: steps of the warm-up, `warmup` itself or that share of all steps; 0 and 1 are none
    """

    def __init__(self, *, warmup: Span = 0.1) -> None:
        self.warmup = warmup

    def after(self, step: int, *, start: int, steps: int) -> float:
        """The peak."""
        return 1.0


@register(
    Card(
        name="inverse_sqrt",
        title="Inverse square root (Noam)",
        formula="factor(t) = min(t / w, sqrt(w / t))",
        paper="Vaswani et al., Attention Is All You Need, 2017, arXiv 1706.03762",
        summary="The schedule of the original Transformer; does not need to know where it ends.",
    )
)
class InverseSqrt(Schedule):
    """Rise linearly, fall with the root of the step.

    factor(t) = min(t / w, sqrt(w / t))

    t: step from 1
    w: steps of the warm-up, `warmup` itself or that share of all steps; 0 and 1 are none

    Vaswani et al. 2017, section 5.3: k / sqrt(dim) * min(1 / sqrt(t), t / w ** 1.5) is this with a
    peak learning rate of `noam_peak`. Pitfall: without a warm-up it halves by the fourth step.
    """

    def __init__(self, *, warmup: Span = 0.1) -> None:
        self.warmup = warmup

    def after(self, step: int, *, start: int, steps: int) -> float:
        """Root of start over step."""
        return math.sqrt(start / step)


@register(
    Card(
        name="decay_sqrt",
        title="Inverse square root without warm-up",
        formula="factor(t) = sqrt(P / (P + t - 1))",
        paper=(
            "Huang, Perez, Ba and Volkovs, Improving Transformer Optimization Through Better "
            "Initialization, 2020, ICML"
        ),
        summary="Starts at the peak and falls slowly; what T-Fixup is trained with.",
    )
)
class DecaySqrt(Schedule):
    """Start at the peak, fall with the root of the step.

    factor(t) = sqrt(P / (P + t - 1))

    t: step from 1
    P: steps after which the factor is 1 / sqrt(2), `pace` itself or that share of all steps; 0 is
        taken as 1

    Huang et al. 2020, released code, where P = 4000.
    """

    def __init__(self, *, pace: Span = 0.1) -> None:
        self.pace = pace

    def after(self, step: int, *, start: int, steps: int) -> float:
        """The peak is at step 1."""
        pace = max(1, span(self.pace, steps))
        return math.sqrt(pace / (pace + step - 1))


@register(
    Card(
        name="linear",
        title="Warm-up, then linear decay",
        formula="factor(t) = min(t / w, 1 - (1 - floor) * (t - w) / (T - w))",
        paper="Devlin et al., BERT, 2018, arXiv 1810.04805",
        summary="Rises linearly and falls linearly to the floor, which the last step reaches.",
    )
)
class Linear(Schedule):
    """Rise linearly, fall linearly.

    factor(t) = t / w                                    up to w
    factor(t) = 1 - (1 - floor) * (t - w) / (T - w)      from there to T

    t: step from 1
    w: steps of the warm-up, `warmup` itself or that share of all steps; 0 and 1 are none
    T: all steps
    floor: the factor of the last step
    """

    def __init__(self, *, warmup: Span = 0.1, floor: Share = 0.0) -> None:
        self.warmup, self.floor = warmup, floor

    def after(self, step: int, *, start: int, steps: int) -> float:
        """Along the straight line."""
        return _between(self.floor, (steps - step) / (steps - start))


@register(
    Card(
        name="cosine",
        title="Warm-up, then cosine decay",
        formula="factor(t) = floor + (1 - floor) * (1 + cos(pi * (t - w) / (T - w))) / 2",
        paper=(
            "Loshchilov and Hutter, SGDR: Stochastic Gradient Descent with Warm Restarts, 2016, "
            "arXiv 1608.03983"
        ),
        summary="Rises linearly and falls along half a cosine to the floor; no restarts.",
    )
)
class Cosine(Schedule):
    """Rise linearly, fall along half a cosine.

    factor(t) = t / w                                                           up to w
    factor(t) = floor + (1 - floor) * (1 + cos(pi * (t - w) / (T - w))) / 2     from there to T

    t: step from 1
    w: steps of the warm-up, `warmup` itself or that share of all steps; 0 and 1 are none
    T: all steps
    floor: the factor of the last step
    """

    def __init__(self, *, warmup: Span = 0.1, floor: Share = 0.0) -> None:
        self.warmup, self.floor = warmup, floor

    def after(self, step: int, *, start: int, steps: int) -> float:
        """Along the cosine."""
        angle = math.pi * (step - start) / (steps - start)
        return _between(self.floor, (1 + math.cos(angle)) / 2)


@register(
    Card(
        name="wsd",
        title="Warm-up, stable, decay",
        formula="factor(t) = min(t / w, 1, floor + (1 - floor) * fall((t - T + D) / D))",
        paper=(
            "Hu et al., MiniCPM: Unveiling the Potential of Small Language Models, 2024, arXiv "
            "2404.06395"
        ),
        summary="The peak for most of the run, so that it can be prolonged; a short decay at last.",
    )
)
class WSD(Schedule):
    """Rise linearly, stay, fall at the end.

    factor(t) = t / w                                             up to w
    factor(t) = 1                                                 up to T - D
    factor(t) = floor + (1 - floor) * fall((t - T + D) / D)       from there to T

    t: step from 1
    w: steps of the warm-up, `warmup` itself or that share of all steps; 0 and 1 are none
    T: all steps
    D: steps of the decay, `decay` itself or that share of all steps
    fall(q): 1 - q with shape=linear, 1 - sqrt(q) with shape=sqrt
    floor: the factor of the last step

    Hu et al. 2024, section 4; shapes: Haegele et al., Scaling Laws and Compute-Optimal Training
    Beyond Fixed Training Durations, 2024, arXiv 2405.18392, who find sqrt a little better.
    """

    # NOTE[DIFF]: the paper's decay is exponential; linear and sqrt reach the floor exactly.
    def __init__(
        self,
        *,
        warmup: Span = 0.1,
        decay: Span = 0.2,
        shape: Literal["linear", "sqrt"] = "linear",
        floor: Share = 0.0,
    ) -> None:
        self.warmup, self.decay, self.shape, self.floor = warmup, decay, shape, floor

    def check(self, steps: int) -> None:
        """Also refuse a decay that would begin inside the warm-up."""
        super().check(steps)
        warmup, decay = self.warmup_steps(steps), span(self.decay, steps)
        if warmup + decay > steps:
            raise UserError(
                f"a warm-up of {warmup} and a decay of {decay} steps do not fit into a run of "
                f"{steps}; wanted less of them, or shares of the run such as decay=0.2"
            )

    def after(self, step: int, *, start: int, steps: int) -> float:
        """The peak, until the decay begins."""
        decay = span(self.decay, steps)
        gone = step - (steps - decay)
        if gone <= 0:
            return 1.0
        share = gone / decay
        return _between(self.floor, 1 - (math.sqrt(share) if self.shape == "sqrt" else share))


def noam_peak(dim: int, *, warmup: int, k: float = 1.0) -> float:
    """The peak learning rate of Vaswani et al. 2017 for `inverse_sqrt`: k / sqrt(dim * warmup).

    >>> f"{noam_peak(512, warmup=4000):.3e}"
    '6.988e-04'
    """
    return k / math.sqrt(dim * warmup)


def _between(floor: float, height: float) -> float:
    """A height from 0 to 1, on ground that stands at `floor`."""
    return floor + (1 - floor) * height
