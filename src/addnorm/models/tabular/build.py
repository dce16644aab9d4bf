"""Construction of table models by name."""

from addnorm.models.tabular.base import TableModel
from addnorm.models.tabular.config import TableConfig
from addnorm.models.tabular.ft_transformer import FTTransformer
from addnorm.models.tabular.mlp import TableMLP
from addnorm.models.tabular.saint import Saint
from addnorm.models.tabular.tab_transformer import TabTransformer

MODELS: dict[str, type[TableModel]] = {
    "ft_transformer": FTTransformer,
    "tab_transformer": TabTransformer,
    "saint": Saint,
    "mlp": TableMLP,
}


def build_table_model(config: TableConfig, *, seed: int | None = None) -> TableModel:
    """Build the model of a config; a seed makes its initial weights reproducible."""
    model = MODELS[config.model](config)
    return model.init_weights(seed=seed) if seed is not None else model
