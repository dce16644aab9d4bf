"""Self-supervised pre-training on rows without a target."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.models.base import WiredModule
from addnorm.models.tabular import TableBatch, TableConfig, TableModel
from addnorm.models.tabular.table_batch import ABSENT
from addnorm.stacks import Stack
from addnorm.tabular.columns.encoder import TableEncoder

OBJECTIVES = ("auto", "masked", "replaced", "contrastive")
MASK_FRACTION = 0.3
"""Fraction of cells that are masked or replaced."""
MIX_FRACTION = 0.2
"""Weight of another row's token embeddings in the augmented view (mixup)."""
CONTRASTIVE_TEMPERATURE = 0.7
"""Temperature of the contrastive loss."""
CONTRASTIVE_WEIGHT, CATEGORY_WEIGHT, NUMBER_WEIGHT = 0.5, 1.0, 10.0
"""Weights of the three terms of SAINT's loss."""
MAX_PROJECTION_DIM = 1024
"""Largest width of a projection head."""


@dataclass(frozen=True)
class Pretrained:
    """Encoder and weights of a pre-trained model."""

    encoder: TableEncoder
    config: TableConfig
    weights: bytes
    """All weights but those of the head, as safetensors."""

    def load_into(self, module: TableModel) -> None:
        """Load the weights into a model with the same config; its head keeps its own weights."""
        expected, got = (
            each.model_dump(exclude={"outputs"}) for each in (self.config, module.config)
        )
        changed = [name for name in expected if expected[name] != got[name]]
        if changed:
            raise UserError(
                "expected the settings of the pre-training, got others for "
                f"{', '.join(changed)}; call pretrain again or fit a new estimator"
            )
        state = module.state_dict()
        module.load_state_dict(state | load(self.weights))


class PretextModel(WiredModule):
    """Table model with the heads and the loss of a pre-training objective.

    masked: reconstruct masked cells; squared error of numbers, cross entropy of categories
    replaced: detect the cells that were replaced by a different value of another row
    contrastive: match each row with its augmented view, and reconstruct the cells from the view,

        (H(Z Z'^T / 0.7) + H(Z' Z^T / 0.7)) / 2 * 0.5 + categories + 10 * numbers

    Z, Z': (B, width), projections of the normalized cell embeddings of the rows and of their views
    H: mean cross entropy with the row itself as the correct class

    Huang et al. 2020, section 2 (masked, replaced); Somepalli et al. 2021, section 4 (contrastive).
    """

    # NOTE[DIFF]: strings and missing cells are masked, but not reconstructed.
    # NOTE[DIFF]: weights, temperature and projections are those of SAINT's released code, whose
    # projections (6 / 5 and 1 / 2 of the width of all cells) are unbounded; here they have at most
    # 1024 features and do not read the row token.
    # NOTE[DIFF]: a view takes 0.3 of its cells from another row and keeps 0.8 of its own embedding.
    # The paper's formula keeps 0.2, the released code 0.3, and its mixing is off by default.
    def __init__(self, model: TableModel, objective: str) -> None:
        super().__init__()
        config = model.config
        self.model = model
        if objective == "auto":
            objective = "contrastive" if config.model == "saint" else "masked"
        self.objective = objective
        covered = torch.zeros(config.features, dtype=torch.bool)
        covered[model.covered_features] = True
        if not bool(covered.any()):
            raise UserError(
                f"pretrain: expected columns that {config.model} attends to, got none in this "
                "table; choose another model"
            )
        self.covered_features, self.first_feature = covered, int(covered.nonzero()[0])
        width = model.states_width
        self.flags = nn.Linear(width, config.features)
        self.numbers = nn.Linear(width, max(1, config.numbers))
        self.categories = nn.ModuleList(nn.Linear(width, size) for size in config.categories)
        projection_width = width * int(covered.sum())
        self.project = nn.ModuleList(_build_projection(projection_width) for _ in range(2))

    @property
    def stacks(self) -> tuple[Stack, ...]:
        return self.model.stacks

    def outer_weights(self) -> Iterator[tuple[str, Tensor]]:
        return self.model.outer_weights()

    def no_decay(self) -> set[str]:
        return {f"model.{name}" for name in self.model.no_decay()}

    def loss(self, cells: TableBatch) -> Tensor:
        """Return the mean loss of the objective over a batch of rows."""
        rows, device = cells.num_rows, cells.numbers.device
        other = cells.select_rows(torch.randperm(rows, device=device))
        mask = torch.rand(rows, len(self.covered_features), device=device) < MASK_FRACTION
        mask = mask & self.covered_features.to(device)
        if self.objective == "masked":
            numbers, categories = self._reconstruction_losses(
                self.model.states(cells.masked(mask)), cells, mask
            )
            return numbers + categories / max(1, len(self.categories))
        mixed = cells.replace_cells(other, mask)
        if self.objective == "replaced":
            return self._replacement_loss(self.model.states(mixed), mixed.differs_from(cells))
        return self._contrastive_loss(cells, mixed, mask)

    def _reconstruction_losses(
        self, states: Tensor, cells: TableBatch, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the losses of reconstructing the cells of a mask; missing cells do not count.

        The loss of numbers is a mean over cells; that of categories is a sum of means over columns.
        """
        numbers, number_loss, category_loss = self.model.config.numbers, *states.new_zeros(2)
        if self.first_feature < numbers:
            predicted = torch.einsum("bnd,nd->bn", states[:, :numbers], self.numbers.weight)
            counted = (mask[:, :numbers] & ~cells.absent).to(states.dtype)
            errors = (predicted + self.numbers.bias - cells.numbers).square() * counted
            number_loss = errors.sum() / counted.sum().clamp_min(1)
        for index, head in enumerate(self.categories):
            present = cells.codes[:, index] != ABSENT
            counted = (mask[:, numbers + index] & present).to(states.dtype)
            losses = F.cross_entropy(
                head(states[:, numbers + index - self.first_feature]),
                cells.codes[:, index],
                reduction="none",
            )
            category_loss = category_loss + (losses * counted).sum() / counted.sum().clamp_min(1)
        return number_loss, category_loss

    def _replacement_loss(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return the binary cross entropy of detecting the replaced cells of a mask."""
        weight, bias = (
            self.flags.weight[self.covered_features],
            self.flags.bias[self.covered_features],
        )
        logits = torch.einsum("bnd,nd->bn", states, weight) + bias
        return F.binary_cross_entropy_with_logits(
            logits, mask[:, self.covered_features].to(logits.dtype)
        )

    def _contrastive_loss(self, cells: TableBatch, mixed: TableBatch, mask: Tensor) -> Tensor:
        shuffled = torch.randperm(cells.num_rows, device=mask.device)

        def mix(_module: nn.Module, _inputs: Any, tokens: Tensor) -> Tensor:
            return (1 - MIX_FRACTION) * tokens + MIX_FRACTION * tokens[shuffled]

        row_states = self.model.states(cells)
        hook = self.model.tokens.register_forward_hook(mix)
        try:
            view_states = self.model.states(mixed)
        finally:
            hook.remove()
        rows, views = (
            project(F.normalize(each, dim=-1).flatten(1))
            for project, each in zip(self.project, (row_states, view_states), strict=True)
        )
        logits = rows @ views.mT / CONTRASTIVE_TEMPERATURE
        own = torch.arange(len(logits), device=logits.device)
        contrastive = (F.cross_entropy(logits, own) + F.cross_entropy(logits.mT, own)) / 2
        all_cells = self.covered_features.to(mask.device).expand_as(mask)
        numbers, categories = self._reconstruction_losses(view_states, cells, all_cells)
        return (
            CONTRASTIVE_WEIGHT * contrastive
            + CATEGORY_WEIGHT * categories
            + NUMBER_WEIGHT * numbers
        )


def _build_projection(width: int) -> nn.Module:
    hidden, out = (max(1, min(MAX_PROJECTION_DIM, size)) for size in (6 * width // 5, width // 2))
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out))
