"""Which columns matter: by attention, or by what their shuffling costs."""

from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.models.tabular import TableBatch, TableModel
from addnorm.stacks import Stack
from addnorm.sublayers import SelfAttention
from addnorm.tabular.training.loop import WeightedBatch, eval_mode, predict
from addnorm.tabular.training.targets import Target

KINDS = ("auto", "rollout", "permutation")
MAX_ROWS = 256
"""Rows that are looked at, at most."""
MAX_MAP_ELEMENTS = 1 << 22
"""Numbers in the attention maps of a layer at once, about: they grow with the square of columns."""
ATTENTION_MODELS = ("ft_transformer", "saint")
"""Models whose first token attends to every column."""


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
    """The importance of every column, (columns), from 0, with the sum 1 (all 0 where none has any).

    rollout: how much of each column reaches the first token
    permutation: how much the loss grows when a column's cells change places
    """
    if kind not in KINDS:
        raise UserError(unknown_name_message("importance", str(kind), KINDS))
    attends = model.config.model in ATTENTION_MODELS
    if kind == "rollout" and not attends:
        raise UserError(
            f"importance='rollout' wants a model whose first token attends to every column, and "
            f"{model.config.model} has none; wanted 'permutation'"
        )
    some = sample.subsample(MAX_ROWS)
    if kind == "permutation" or not attends:
        raw = permutation_importance(
            model, some, reference=reference, target=target, sources=sources
        )
    else:
        raw = sum_by_column(
            attention_rollout(model, some.cells, reference).mean(0).cpu().numpy(), sources, columns
        )
    raw = np.pad(raw, (0, columns - len(raw)))
    return raw / raw.sum() if raw.sum() > 0 else raw


def sum_by_column(features: np.ndarray, sources: list[int], columns: int) -> np.ndarray:
    """Sums over the features that a column became."""
    return np.bincount(sources, features, columns)


@torch.no_grad()
def attention_rollout(model: TableModel, cells: TableBatch, reference: TableBatch) -> Tensor:
    """How much of each feature's token is in the first one after the last layer, (B, features).

    R = product over layers of (A + I) / 2,    A: attention, the mean over heads

    Abnar and Zuidema, Quantifying Attention Flow in Transformers, 2020, arXiv 2005.00928. It
    follows attention between columns only, and neither signs nor feed-forwards.
    """
    weight, tokens = model.head.weight, 1 + model.config.features
    many = max(1, MAX_MAP_ELEMENTS // (model.config.heads * tokens**2))
    own = torch.eye(tokens, dtype=weight.dtype, device=weight.device)
    layers: list[Tensor] = []  # the product so far
    flows = []

    def passed(_tap: Any, _inputs: Any, seen: Tensor) -> None:
        seen = seen.mean(1)  # in the last layer only the first token may ask
        step = (seen + own[: seen.shape[1]]) / 2
        layers[:] = [step @ layers[0] if layers else step]

    with eval_mode(model), ExitStack() as hooks:
        memory = model.encode_reference(reference.to(weight.device, weight.dtype))
        for each in _attention_layers(model.stacks[0]):
            hooks.callback(each.probabilities_tap.register_forward_hook(passed).remove)
        for start in range(0, cells.num_rows, many):
            layers.clear()
            part = cells.select_rows(slice(start, start + many))
            model.embed(part.to(weight.device, weight.dtype), memory)
            flows.append(layers[0][:, 0, 1:])
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
    """How much the loss grows when the cells of a column change places, (columns), from 0."""
    chance = torch.Generator().manual_seed(0)
    other = sample.cells.select_rows(torch.randperm(len(sample.weights), generator=chance))
    column = torch.tensor(sources)

    def loss(cells: TableBatch) -> float:
        losses = target.loss(predict(model, cells, reference).cpu(), sample.targets)
        return float((losses * sample.weights).sum() / sample.weights.sum())

    base = loss(sample.cells)
    grown = []
    for number in range(max(sources) + 1):
        where = (column == number).expand(len(sample.weights), -1)
        grown.append(loss(sample.cells.replace_cells(other, where)) - base)
    return np.maximum(grown, 0.0)
