"""Sentences of a diagnosis."""

from typing import Literal

from typing_extensions import Self

from addnorm.doctor.report import Severity

SentenceKind = Literal["fact", "change", "association"]


class Sentence(str):
    """One statement about a run: a text that knows its kind, step, site and link.

    fact: what the rows show
    change: a value against the run's own past
    association: a published observation whose condition holds here
    """

    kind: SentenceKind
    severity: Severity
    step: int | None
    """Step that it is about; None for the whole run."""
    site: str
    """Label of the site; empty for the whole model."""
    link: str
    """Page of the documentation that bears on it."""

    def __new__(
        cls,
        text: str,
        *,
        kind: SentenceKind,
        severity: Severity = "warning",
        step: int | None = None,
        site: str = "",
        link: str,
    ) -> Self:
        sentence = super().__new__(cls, f"{text} See {link}.")
        sentence.kind, sentence.severity, sentence.step = kind, severity, step
        sentence.site, sentence.link = site, link
        return sentence

    def to_dict(self) -> dict[str, str | int | None]:
        """Return the sentence as plain data."""
        return {
            "text": str(self),
            "kind": self.kind,
            "severity": self.severity,
            "step": self.step,
            "site": self.site,
            "link": self.link,
        }
