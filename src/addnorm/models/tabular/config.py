"""Config of a table model."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from addnorm.core.validation import Depth, FrozenConfig, Size, Width
from addnorm.models.config import Rate
from addnorm.models.tabular.members import MemberAverage

Rows = Annotated[int, Field(ge=2, strict=True)]


class TableConfig(FrozenConfig):
    """Settings of a table model.

    >>> config = TableConfig(model="mlp", numbers=3, categories=(4,), outputs=2)
    >>> config.features
    4
    """

    model: Literal["ft_transformer", "tab_transformer", "saint", "mlp"]
    """Architecture."""
    numbers: int = Field(0, ge=0)
    """Number of numeric features."""
    categories: tuple[Rows, ...] = ()
    """Number of codes of each categorical feature, including `ABSENT` and `RARE`."""
    texts: tuple[Rows, ...] = ()
    """Vocabulary size of each text feature, including `PADDING` and `NO_TEXT`."""
    outputs: Size
    """Outputs per row: logits, or one number."""

    wiring: str = "pre_ln"
    """Wiring of the sub-layers, as a call string."""
    norm: str = "layer"
    """Norm that the wiring uses, as a call string."""
    numeric: str = "linear"
    """Numeric embedding, as a call string; see `numeric_embeddings.py`."""
    dim: Width = 64
    """Width of the residual stream."""
    depth: Depth = 2
    """Number of layers."""
    heads: Size = 8
    """Number of attention heads."""
    ffn_dim: Size | None = None
    """Hidden width of the feed-forward; the model's default multiple of `dim` if None."""
    activation: str = "reglu"
    """Activation of the feed-forward."""
    dropout: Rate = 0.0
    """Dropout rate of every residual branch."""
    attention_dropout: Rate = 0.0
    """Dropout rate of attention probabilities."""
    activation_dropout: Rate = 0.0
    """Dropout rate of the feed-forward's hidden features."""
    members: Size = 1
    """Number of predictions that share all weights but a scale and the head; see `members.py`."""
    member_average: MemberAverage = "outputs"
    """What is averaged over members: their outputs, or the probabilities of their logits."""

    @model_validator(mode="after")
    def _check_columns(self) -> "TableConfig":
        if not self.features:
            raise ValueError("expected a table with at least one column, got none")
        return self

    @property
    def features(self) -> int:
        """Number of features of all types."""
        return self.numbers + len(self.categories) + len(self.texts)
