"""Feature importances: attention rollout and permutation importance."""

from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.models.tabular import TableBatch, TableModel
from addnorm.stacks import Stack
from addnorm.stacks.eval_mode import eval_mode
from addnorm.sublayers import SelfAttention
from addnorm.tabular.training.loop import WeightedBatch
from addnorm.tabular.training.prediction import predict
from addnorm.tabular.training.targets import Target

KINDS = ("auto", "rollout", "permutation")
MAX_ROWS = 256
"""Largest number of rows used."""
MAX_MAP_ELEMENTS = 1 << 22
"""Approximate limit of elements in the attention maps of a layer, quadratic in the columns."""
ATTENTION_MODELS = ("ft_transformer", "saint")
"""Models whose first token attends to every column, which rollout requires."""


def compute_importances(
    kind: str,
    model: TableModel,
    sample: WeightedBatch,
    *,
    reference: TableBatch,
    target: Target,
    sources: list[int],
    columns: int,
) -> np.ndarray:
    """Return the importance of every column, (columns), non-negative with sum 1 (or all 0).

    Args:
        kind: "rollout", "permutation", or "auto", which uses rollout if the model supports it
        model: fitted model
        sample: rows to measure on
        reference: reference rows of the model
        target: loss for permutation importance
        sources: column of each feature
        columns: number of columns
    """
    if kind not in KINDS:
        raise UserError(unknown_name_message("importance", str(kind), KINDS))
    attends = model.config.model in ATTENTION_MODELS
    if kind == "rollout" and not attends:
        raise UserError(
            "importance: expected 'permutation' or 'auto', got 'rollout', but the first token of "
            f"{model.config.model} does not attend to every column"
        )
    subsample = sample.subsample(MAX_ROWS)
    if kind == "permutation" or not attends:
        raw = permutation_importance(
            model, subsample, reference=reference, target=target, sources=sources
        )
    else:
        by_feature = attention_rollout(model, subsample.cells, reference).mean(0).cpu().numpy()
        raw = np.bincount(sources, by_feature, columns)  # sum over the features of a column
    raw = np.pad(raw, (0, columns - len(raw)))
    return raw / raw.sum() if raw.sum() > 0 else raw


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


def permutation_importance(
    model: TableModel,
    sample: WeightedBatch,
    *,
    reference: TableBatch,
    target: Target,
    sources: list[int],
) -> np.ndarray:
    """Return the increase of the loss when a column is shuffled, (columns), at least 0."""
    generator = torch.Generator().manual_seed(0)
    shuffled = sample.cells.select_rows(torch.randperm(len(sample.weights), generator=generator))
    column_of_feature = torch.tensor(sources)

    def loss(cells: TableBatch) -> float:
        losses = target.loss(predict(model, cells, reference).cpu(), sample.targets)
        return float((losses * sample.weights).sum() / sample.weights.sum())

    base = loss(sample.cells)
    increases = []
    for column in range(max(sources) + 1):
        mask = (column_of_feature == column).expand(len(sample.weights), -1)
        increases.append(loss(sample.cells.replace_cells(shuffled, mask)) - base)
    return np.maximum(increases, 0.0)
