"""Learning-rate schedules."""

import math
from typing import Literal

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.registry import Fraction
from addnorm.train.schedules.base import (
    Schedule,
    StepsOrFraction,
    register,
    resolve_steps,
    with_floor,
)


@register(
    Card(
        name="none",
        title="Constant",
        formula="factor = 1",
        paper="Robbins and Monro, A Stochastic Approximation Method, 1951",
        summary="Constant learning rate.",
    )
)
class Constant(Schedule):
    """No warm-up, no decay.

    factor = 1

    factor: scalar on the peak learning rate, 1 throughout
    """

    def decay_factor(self, step: int, *, start: int, steps: int) -> float:
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
    w: steps of the warm-up: `warmup` steps, or that fraction of the run; 0 and 1 disable it
    """

    def __init__(self, *, warmup: StepsOrFraction = 0.1) -> None:
        self.warmup = warmup

    def decay_factor(self, step: int, *, start: int, steps: int) -> float:
        return 1.0


@register(
    Card(
        name="inverse_sqrt",
        title="Inverse square root (Noam)",
        formula="factor(t) = min(t / w, sqrt(w / t))",
        paper="Vaswani et al., Attention Is All You Need, 2017, arXiv 1706.03762",
        summary="The original Transformer's; with warmup in steps, it fits runs of any length.",
    )
)
class InverseSqrt(Schedule):
    """Rise linearly, fall with the root of the step.

    factor(t) = min(t / w, sqrt(w / t))

    t: step from 1
    w: steps of the warm-up: `warmup` steps, or that fraction of the run; 0 and 1 disable it

    Vaswani et al. 2017, section 5.3: k / sqrt(dim) * min(1 / sqrt(t), t / w ** 1.5) is this with a
    peak learning rate of `noam_peak`. Pitfall: without a warm-up it halves by the fourth step.
    """

    def __init__(self, *, warmup: StepsOrFraction = 0.1) -> None:
        self.warmup = warmup

    def decay_factor(self, step: int, *, start: int, steps: int) -> float:
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
        summary="Starts at the peak and falls slowly; used by T-Fixup.",
    )
)
class DecaySqrt(Schedule):
    """Start at the peak, fall with the root of the step.

    factor(t) = sqrt(P / (P + t - 1))

    t: step from 1
    P: steps after which the factor is 1 / sqrt(2): `pace` steps, or that fraction of the run; 0 is
        taken as 1

    Huang et al. 2020, released code, where P = 4000.
    """

    def __init__(self, *, pace: StepsOrFraction = 0.1) -> None:
        self.pace = pace

    def decay_factor(self, step: int, *, start: int, steps: int) -> float:
        pace = max(1, resolve_steps(self.pace, steps))
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
    w: steps of the warm-up: `warmup` steps, or that fraction of the run; 0 and 1 disable it
    T: all steps
    floor: the factor of the last step
    """

    def __init__(self, *, warmup: StepsOrFraction = 0.1, floor: Fraction = 0.0) -> None:
        self.warmup, self.floor = warmup, floor

    def decay_factor(self, step: int, *, start: int, steps: int) -> float:
        return with_floor(self.floor, (steps - step) / (steps - start))


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
    w: steps of the warm-up: `warmup` steps, or that fraction of the run; 0 and 1 disable it
    T: all steps
    floor: the factor of the last step
    """

    def __init__(self, *, warmup: StepsOrFraction = 0.1, floor: Fraction = 0.0) -> None:
        self.warmup, self.floor = warmup, floor

    def decay_factor(self, step: int, *, start: int, steps: int) -> float:
        angle = math.pi * (step - start) / (steps - start)
        return with_floor(self.floor, (1 + math.cos(angle)) / 2)


@register(
    Card(
        name="wsd",
        title="Warm-up, stable, decay",
        formula="factor(t) = min(t / w, 1, floor + (1 - floor) * fall((t - T + D) / D))",
        paper=(
            "Hu et al., MiniCPM: Unveiling the Potential of Small Language Models, 2024, arXiv "
            "2404.06395"
        ),
        summary="Constant for most of the run, so that it can be extended; a short final decay.",
    )
)
class WSD(Schedule):
    """Rise linearly, stay, fall at the end.

    factor(t) = t / w                                             up to w
    factor(t) = 1                                                 up to T - D
    factor(t) = floor + (1 - floor) * fall((t - T + D) / D)       from there to T

    t: step from 1
    w: steps of the warm-up: `warmup` steps, or that fraction of the run; 0 and 1 disable it
    T: all steps
    D: steps of the decay: `decay` steps, or that fraction of the run
    fall(q): 1 - q with shape=linear, 1 - sqrt(q) with shape=sqrt
    floor: the factor of the last step

    Hu et al. 2024, section 4; shapes: Haegele et al., Scaling Laws and Compute-Optimal Training
    Beyond Fixed Training Durations, 2024, arXiv 2405.18392, who find sqrt a little better.
    """

    # NOTE[DIFF]: the paper's decay is exponential; linear and sqrt reach the floor exactly.
    def __init__(
        self,
        *,
        warmup: StepsOrFraction = 0.1,
        decay: StepsOrFraction = 0.2,
        shape: Literal["linear", "sqrt"] = "linear",
        floor: Fraction = 0.0,
    ) -> None:
        self.warmup, self.decay, self.shape, self.floor = warmup, decay, shape, floor

    def check(self, steps: int) -> None:
        super().check(steps)
        warmup, decay = self.warmup_steps(steps), resolve_steps(self.decay, steps)
        if warmup + decay > steps:
            raise UserError(
                f"a warm-up of {warmup} and a decay of {decay} steps do not fit into a run of "
                f"{steps}; use fewer steps, or fractions of the run such as decay=0.2"
            )

    def decay_factor(self, step: int, *, start: int, steps: int) -> float:
        decay = resolve_steps(self.decay, steps)
        decay_steps_done = step - (steps - decay)
        if decay_steps_done <= 0:
            return 1.0
        fraction = decay_steps_done / decay
        fall = math.sqrt(fraction) if self.shape == "sqrt" else fraction
        return with_floor(self.floor, 1 - fall)
