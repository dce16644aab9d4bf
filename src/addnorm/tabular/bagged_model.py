"""Average of several table models: the networks of a fit with `bagging`."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.models.tabular import TableBatch, TableConfig, TableModel
from addnorm.models.tabular.feature_tokenizer import FeatureTokenizer


class BaggedModel(nn.Module):
    """Networks of one architecture on the same encoded columns, as one network.

    classes: log(mean over networks of softmax(outputs))
    numbers: mean over networks of the outputs
    """

    def __init__(self, models: Sequence[TableModel], *, averages_classes: bool) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.averages_classes = averages_classes

    @property
    def config(self) -> TableConfig:
        """Config that the networks share."""
        return self.first.config

    @property
    def first(self) -> TableModel:
        """Network that stands for all in what they share: config, dtype, device and tokenizer."""
        model = self.models[0]
        assert isinstance(model, TableModel)
        return model

    @property
    def head(self) -> nn.Module:
        """Head of the first network, whose dtype and device all networks have."""
        return self.first.head

    @property
    def tokens(self) -> FeatureTokenizer:
        """Tokenizer of the first network."""
        return self.first.tokens

    @property
    def width(self) -> int:
        """Width of a row embedding: that of all networks side by side."""
        return self.first.width * len(self.models)

    def encode_reference(self, reference: TableBatch) -> list[Tensor | None]:
        """Return the encoded reference rows of each network."""
        return [each.encode_reference(reference) for each in self.models]  # type: ignore[operator]

    def embed(self, cells: TableBatch, memory: Sequence[Tensor | None]) -> Tensor:
        """Return the row embeddings of all networks side by side, (B, width)."""
        pairs = zip(self.models, memory, strict=True)
        return torch.cat([model.embed(cells, each) for model, each in pairs], 1)  # type: ignore[operator]

    def forward(self, cells: TableBatch, memory: Sequence[Tensor | None]) -> Tensor:
        """Return the averaged outputs, (B, outputs)."""
        pairs = zip(self.models, memory, strict=True)
        outputs = torch.stack([model(cells, each) for model, each in pairs])
        if not self.averages_classes:
            return outputs.mean(0)
        return outputs.log_softmax(-1).logsumexp(0) - math.log(len(self.models))


def join_networks(modules: Sequence[TableModel], *, averages_classes: bool) -> Any:
    """Return a single network, or several as one."""
    if len(modules) == 1:
        return modules[0]
    return BaggedModel(modules, averages_classes=averages_classes)


def list_networks(module: Any) -> list[TableModel]:
    """Return the networks of a fitted estimator: one, or one for each fold."""
    modules = module.models if isinstance(module, BaggedModel) else [module]
    return [each for each in modules if isinstance(each, TableModel)]
