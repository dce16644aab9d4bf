"""Feature importances: permutation importance and attention rollout."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.models.tabular import TableBatch, TableModel
from addnorm.stacks import Stack
from addnorm.stacks.eval_mode import eval_mode
from addnorm.sublayers import SelfAttention
from addnorm.tabular.dataset import FitData
from addnorm.tabular.training.loop import WeightedBatch
from addnorm.tabular.training.prediction import predict

KINDS = ("permutation", "rollout", "auto")
MAX_ROWS = 1000
"""Largest number of rows used."""
MIN_ROWS = 100
"""Rows that are used in any case, if there are as many."""
MAX_PREDICTIONS = 250_000
"""Approximate limit of predicted rows, so that wide tables do not take minutes."""
REPEATS = 5
"""Shuffles of a column."""
MAX_ROLLOUT_ROWS = 256
"""Largest number of rows whose attention is averaged."""
MAX_MAP_ELEMENTS = 1 << 22
"""Approximate limit of elements in the attention maps of a layer, quadratic in the columns."""
ATTENTION_MODELS = ("ft_transformer", "saint")
"""Models whose first token attends to every column, which rollout requires."""


@dataclass(frozen=True)
class ImportancePart:
    """Network of a fit, and rows that it was not trained on, if there are any."""

    module: TableModel
    sample: WeightedBatch
    data: FitData
    """Encoder, target and reference rows of the network; its folds are not used."""

    def __post_init__(self) -> None:
        # The rows of the fit would be kept in memory and pickled.
        object.__setattr__(self, "data", replace(self.data, folds=(), inverse=np.empty(0)))


@dataclass(frozen=True)
class Importances:
    """Importances of the columns of a table."""

    mean: np.ndarray
    """(columns) mean increase of the loss over the shuffles of a column, or its attention."""
    std: np.ndarray
    """(columns) standard deviation over the shuffles; 0 for attention."""

    @property
    def normalized(self) -> np.ndarray:
        """Means without negative ones, divided by their sum."""
        positive = np.maximum(self.mean, 0.0)
        return positive / positive.sum() if positive.sum() > 0 else positive


def check_importance(kind: Any, model: str) -> None:
    """Raise `UserError` for an unknown kind, or for rollout of a model without the attention."""
    if not isinstance(kind, str) or kind not in KINDS:
        raise UserError(unknown_name_message("importance", str(kind), KINDS))
    if kind == "rollout" and model not in ATTENTION_MODELS:
        raise UserError(
            "importance: expected 'permutation' or 'auto', got 'rollout', but the first token of "
            f"{model} does not attend to every column"
        )


def compute_importances(kind: str, parts: Sequence[ImportancePart], columns: int) -> Importances:
    """Return the importance of every column, averaged over the networks of a fit.

    Args:
        kind: "permutation" (or "auto"), or "rollout"
        parts: networks and the rows to measure on
        columns: number of columns
    """
    samples = []
    for part in parts:
        model, data, sources = part.module, part.data, part.data.encoder.sources
        if kind != "rollout":
            rows = max(MIN_ROWS, MAX_PREDICTIONS // (REPEATS * columns * len(parts)))
            smaller = replace(part, sample=part.sample.subsample(rows))
            samples.append(shuffled_losses(smaller, [[column] for column in range(columns)]))
            continue
        cells = part.sample.subsample(MAX_ROLLOUT_ROWS).cells
        by_feature = attention_rollout(model, cells, data.reference).mean(0).cpu().numpy()
        samples.append(np.bincount(sources, by_feature, columns)[None])
    stacked = np.concatenate(samples)
    return Importances(stacked.mean(0), stacked.std(0))


def shuffled_losses(
    part: ImportancePart, groups: Sequence[Sequence[int]], repeats: int = REPEATS
) -> np.ndarray:
    """Return the increase of the loss when the columns of a group are shuffled together.

    Returns:
        (repeats, groups) increases; a repeat shuffles all groups by the same permutation.
    """
    sample, data = part.sample, part.data
    column_of_feature = torch.tensor(data.encoder.sources)

    def loss(cells: TableBatch) -> float:
        outputs = predict(part.module, cells, data.reference).cpu()
        losses = data.target.loss(outputs, sample.targets)
        return float((losses * sample.weights).sum() / sample.weights.sum())

    base = loss(sample.cells)
    increases = np.zeros((repeats, len(groups)))
    for repeat in range(repeats):
        generator = torch.Generator().manual_seed(repeat)
        order = torch.randperm(len(sample.weights), generator=generator)
        shuffled = sample.cells.select_rows(order)
        for index, group in enumerate(groups):
            mask = torch.isin(column_of_feature, torch.tensor(list(group)))
            mixed = sample.cells.replace_cells(shuffled, mask.expand(len(sample.weights), -1))
            increases[repeat, index] = loss(mixed) - base
    return increases


@torch.no_grad()
def attention_rollout(model: TableModel, cells: TableBatch, reference: TableBatch) -> Tensor:
    """Return the attention flow from each feature's token to the first token, (B, features).

    R = product over layers of (A + I) / 2,    A: attention probabilities, mean over heads

    Abnar and Zuidema, Quantifying Attention Flow in Transformers, 2020, arXiv 2005.00928. Rollout
    follows the attention between columns; it ignores signs, values and feed-forwards.
    """
    weight, tokens = model.head.weight, 1 + model.config.features
    size = max(1, MAX_MAP_ELEMENTS // (model.config.heads * tokens**2))
    identity = torch.eye(tokens, dtype=weight.dtype, device=weight.device)
    product: list[Tensor] = []  # the product of the layers so far, or nothing
    flows = []

    def multiply(_tap: Any, _inputs: Any, probabilities: Tensor) -> None:
        attention = probabilities.mean(1)  # the last layer has the query of the first token only
        layer = (attention + identity[: attention.shape[1]]) / 2
        product[:] = [layer @ product[0] if product else layer]

    with eval_mode(model), ExitStack() as hooks:
        memory = model.encode_reference(reference.to(weight.device, weight.dtype))
        for each in _attention_layers(model.stacks[0]):
            hooks.callback(each.probabilities_tap.register_forward_hook(multiply).remove)
        for start in range(0, cells.num_rows, size):
            product.clear()
            batch = cells.select_rows(slice(start, start + size))
            model.embed(batch.to(weight.device, weight.dtype), memory)
            flows.append(product[0][:, 0, 1:])
    return torch.cat(flows)


def _attention_layers(stack: Stack) -> list[SelfAttention]:
    return [each for each in stack.sublayers if isinstance(each, SelfAttention)]
