"""Checks and verdicts: the rule that turns estimates into an answer, equal for all claims.

A check is an estimate with the open range that the claim predicts. It is held if the whole interval
over seeds lies inside the range, not held if it lies outside, and undecided if it crosses a border
or if there is no interval. A check without a range is reported, not judged. A claim is held if all
its checks are held, and not held if one is not. Premises are checks without which the others have
no meaning: if one is not held, the claim is undecided.

Example: slope 0.5 ± 0.1 with the range below 0.2 is not held; 0.2 ± 0.1 is undecided.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from addnorm.comparison.statistics import Estimate
from addnorm.core.files import replace_nonfinite

Answer = Literal["held", "not held", "undecided"]
ANSWERS: tuple[Answer, ...] = ("held", "not held", "undecided")
NOT_JUDGED = "not judged"
MAX_DIGITS = 4
"""Decimal places above which a number is printed with an exponent."""
RULE = (
    "Every number is a mean over seeds with its 95 % interval (Student's t); differences are taken "
    "seed by seed. A check is held if its whole interval lies inside the range that the claim "
    "predicts (borders excluded), not held if all of it lies outside, and undecided otherwise. A "
    "premise is a check without which the others have no meaning: if one is not held, the claim is "
    "undecided. Otherwise a claim is held if all its checks are held, not held if one of them is "
    "not held, and undecided in all other cases."
)


@dataclass(frozen=True)
class Check:
    """A measured number and the range that the claim predicts for it.

    >>> Check("slope", Estimate(0.0, 0.1, 3), low=-0.2, high=0.2).answer
    'held'
    >>> Check("slope", Estimate(0.5, 0.1, 3), high=0.2).answer
    'not held'
    >>> Check("slope", Estimate(0.2, 0.1, 3), high=0.2).answer
    'undecided'
    """

    what: str
    """Label: what was measured."""
    found: Estimate | None
    """Measured mean and interval; None if nothing could be measured."""
    low: float = -math.inf
    high: float = math.inf
    premise: bool = False
    """Whether the other checks have no meaning without this one."""

    @property
    def has_range(self) -> bool:
        """Whether the claim predicts a range."""
        return math.isfinite(self.low) or math.isfinite(self.high)

    @property
    def answer(self) -> Answer | str:
        """held, not held or undecided; "not judged" without a range."""
        if not self.has_range:
            return NOT_JUDGED
        if self.found is None or self.found.half is None:
            return "undecided"
        bottom, top = self.found.mean - self.found.half, self.found.mean + self.found.half
        if self.low < bottom and top < self.high:
            return "held"
        if top <= self.low or bottom >= self.high:
            return "not held"
        return "undecided"

    @property
    def expected_range(self) -> str:
        """The predicted range as text.

        >>> Check("", None, low=0.5).expected_range, Check("", None, high=2.0).expected_range
        ('above 0.5', 'below 2')
        """
        if not self.has_range:
            return "nothing"
        prefix = "premise: " if self.premise else ""
        if math.isinf(self.high):
            return f"{prefix}above {self.low:.8g}"
        if math.isinf(self.low):
            return f"{prefix}below {self.high:.8g}"
        return f"{prefix}{self.low:.8g} to {self.high:.8g}"

    def to_sentence(self) -> str:
        """Return the label, the number and the predicted range as a sentence."""
        expected = self.expected_range.removeprefix("premise: ")
        is_open = self.answer == "undecided" and self.found is not None
        suffix = ", which the data do not decide" if is_open else ""
        return f"{self.what} is {self.format()}, expected {expected}{suffix}"

    def format(self) -> str:
        """Return the number with its interval as text.

        >>> Check("", Estimate(0.12345, 0.01, 3)).format(), Check("", None).format()
        ('0.1235 ± 0.01', 'not measured')
        """
        if self.found is None:
            return "not measured"
        half = "" if self.found.half is None else f" ± {self.found.half:.2g}"
        return f"{self.found.mean:.4g}{half}"

    def format_short(self, *, exp: bool = False) -> str:
        """Return the number rounded to the precision of its interval.

        exp: return the exponential, of a number that is a logarithm

        >>> Check("", Estimate(0.6665, 0.024, 3)).format_short()
        '0.67 ± 0.02'
        >>> Check("", Estimate(-0.8158, 0.17, 3)).format_short(exp=True)
        '0.44 (0.37 to 0.52)'
        """
        if self.found is None:
            return "not measured"
        mean, half = self.found.mean, self.found.half
        if exp:
            ends = (math.exp(mean + (half or 0.0) * side) for side in (0, -1, 1))
            numbers = [f"{float(f'{value:.2g}'):g}" for value in ends]
            return "{} ({} to {})".format(*numbers) if half else numbers[0]
        if not half:
            return f"{mean:.3g}"
        digits = -math.floor(math.log10(half))
        if not 0 <= digits <= MAX_DIGITS:
            return f"{mean:.2g} ± {half:.1g}"
        rounded = round(mean, digits) + 0.0  # not -0.0
        return f"{rounded:.{digits}f} ± {half:.{digits}f}"


@dataclass(frozen=True)
class Verdict:
    """Answer to a claim, with its checks."""

    checks: tuple[Check, ...]

    @property
    def answer(self) -> Answer:
        """held, not held or undecided."""
        if any(check.premise and check.answer != "held" for check in self.checks):
            return "undecided"
        answers = {check.answer for check in self.checks if check.has_range and not check.premise}
        if "not held" in answers:
            return "not held"
        return "held" if answers == {"held"} else "undecided"

    @property
    def why(self) -> str:
        """The check that decides, as a sentence.

        >>> Verdict((Check("slope", Estimate(0.5, 0.1, 3), high=0.2),)).why
        'Not held: slope is 0.5 ± 0.1, expected below 0.2.'
        """
        answer, judged = self.answer, [check for check in self.checks if check.has_range]
        premises = [check for check in judged if check.premise and check.answer != "held"]
        own = [check for check in judged if not check.premise and check.answer == answer]
        if premises:
            reason = f"a premise does not hold: {premises[0].to_sentence()}"
            more = len(premises) - 1
        elif own:
            reason, more = own[0].to_sentence(), len(own) - 1
        else:
            return "Undecided: nothing was measured."
        rest = f"; and {more} more" if more else ""
        return f"{answer.capitalize()}: {reason}{rest}."

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; numbers that are not finite become None."""
        checks = [asdict(check) | {"answer": check.answer} for check in self.checks]
        data: dict[str, Any] = replace_nonfinite({"answer": self.answer, "checks": checks})
        return data


def estimate_over_seeds(values: Mapping[int, float]) -> Estimate | None:
    """Return the mean over seeds with its interval; None if there are no values."""
    return Estimate.from_values(list(values.values()))
