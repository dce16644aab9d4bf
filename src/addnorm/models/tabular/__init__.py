"""Table models: FT-Transformer, TabTransformer, SAINT and an MLP."""

from addnorm.models.tabular.base import TableModel
from addnorm.models.tabular.build import MODELS, build_table_model
from addnorm.models.tabular.config import TableConfig
from addnorm.models.tabular.ft_transformer import FTTransformer
from addnorm.models.tabular.mlp import TableMLP
from addnorm.models.tabular.saint import Saint
from addnorm.models.tabular.tab_transformer import TabTransformer
from addnorm.models.tabular.table_batch import TableBatch

__all__ = [
    "TableBatch",
    "FTTransformer",
    "MODELS",
    "Saint",
    "TabTransformer",
    "TableConfig",
    "TableMLP",
    "TableModel",
    "build_table_model",
]
