"""The config of a model of tables: every choice that its weights do not show."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from addnorm.core.errors import UserError
from addnorm.core.validation import format_validation_error
from addnorm.models.config import Count, Rate

Rows = Annotated[int, Field(ge=2, strict=True)]


class TableConfig(BaseModel):
    """A model of tables in plain data.

    >>> TableConfig.of(model="ft_transformer", numbers=3, categories=(4,), outputs=2).features
    4
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    model: Literal["ft_transformer", "tab_transformer", "saint", "mlp"]
    """Which network."""
    numbers: int = Field(0, ge=0)
    """Columns of numbers."""
    categories: tuple[Rows, ...] = ()
    """Codes of each column of categories, absent and rare included."""
    texts: tuple[Rows, ...] = ()
    """Codes of words of each column of text, padding and absent included."""
    outputs: Count
    """What the head returns for a row: logits, or one number."""

    wiring: str = "pre_ln"
    """How sub-layers are joined."""
    norm: str = "layer"
    """The norm that the wiring puts where it wants one."""
    numeric: str = "linear"
    """How a number becomes a vector: a call string of `models/tabular/numeric_embeddings.py`."""
    dim: Count = 64
    """Features of the stream."""
    depth: Count = 2
    """Layers."""
    heads: Count = 8
    """Attention heads."""
    ffn_dim: Count | None = None
    """Hidden features of the feed-forward; the model's usual share of `dim` if None."""
    activation: str = "reglu"
    """Activation of the feed-forward."""
    dropout: Rate = 0.0
    """Share of every branch dropped in training."""
    attention_dropout: Rate = 0.0
    """Share of attention probabilities dropped in training."""
    activation_dropout: Rate = 0.0
    """Share of the feed-forward's hidden features dropped in training."""

    @classmethod
    def from_kwargs(cls, **values: Any) -> "TableConfig":
        """A config from keywords; mistakes are told in our own words."""
        try:
            config = cls(**values)
        except ValidationError as problem:
            raise UserError(format_validation_error(problem, list(cls.model_fields))) from None
        if not config.features:
            raise UserError("a table needs at least one column, got none")
        return config

    @property
    def features(self) -> int:
        """Columns of all kinds."""
        return self.numbers + len(self.categories) + len(self.texts)
