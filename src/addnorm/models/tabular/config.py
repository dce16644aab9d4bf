"""Config of a table model."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from addnorm.core.errors import UserError
from addnorm.core.validation import Depth, Size, Width, format_validation_error
from addnorm.models.config import Rate

Rows = Annotated[int, Field(ge=2, strict=True)]


class TableConfig(BaseModel):
    """Settings of a table model.

    >>> config = TableConfig.from_kwargs(model="mlp", numbers=3, categories=(4,), outputs=2)
    >>> config.features
    4
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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

    @classmethod
    def from_kwargs(cls, **values: Any) -> "TableConfig":
        """Build a config; raise `UserError` with a one-line message for invalid fields."""
        try:
            config = cls(**values)
        except ValidationError as error:
            raise UserError(format_validation_error(error, list(cls.model_fields))) from None
        if not config.features:
            raise UserError("expected a table with at least one column, got none")
        return config

    @property
    def features(self) -> int:
        """Number of features of all types."""
        return self.numbers + len(self.categories) + len(self.texts)
