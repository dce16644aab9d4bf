"""Pre-training on rows without a target: a table explains itself."""

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
"""Share of cells that are hidden or replaced."""
MIX_FRACTION = 0.2
"""Share of another row in the vectors of the second view."""
CONTRASTIVE_TEMPERATURE = 0.7
"""Temperature of the contrastive loss."""
CONTRASTIVE_WEIGHT, CATEGORY_WEIGHT, NUMBER_WEIGHT = 0.5, 1.0, 10.0
"""Weights of the three parts of SAINT's loss: which row, its categories, its numbers."""
MAX_PROJECTION_DIM = 1024
"""Features of a projection at most."""


@dataclass(frozen=True)
class Pretrained:
    """What pre-training found: how to read columns, and where to start."""

    encoder: TableEncoder
    config: TableConfig
    weights: bytes
    """Safetensors."""

    def load_into(self, module: TableModel) -> None:
        """Start a model from here; its head starts by itself."""
        theirs = module.config.model_dump(exclude={"outputs"})
        if theirs != self.config.model_dump(exclude={"outputs"}):
            raise UserError(
                "the model was pre-trained with other settings; call pretrain again, or fit a fresh"
                " estimator"
            )
        state = module.state_dict()
        module.load_state_dict(state | load(self.weights))


class PretextModel(WiredModule):
    """A model with heads that ask about its cells.

    masked: a hidden number, as a squared error, and a hidden category, as a cross entropy
    replaced: whether a cell is another row's, and unlike its own
    contrastive: which row a mixed view comes from, and what stood in its cells,

        (H(Z Z'^T / 0.7) + H(Z' Z^T / 0.7)) / 2 * 0.5 + categories + 10 * numbers

    Z, Z': (B, width), projections of all cells' vectors, each of length 1, of rows and mixed rows
    H: mean cross entropy, asked for the row itself

    Huang et al. 2020, section 2 (the first two); Somepalli et al. 2021, section 4.
    """

    # NOTE[DIFF]: words of texts are hidden but not asked for, and so are absent cells.
    # NOTE[DIFF]: weights, temperature and projections are those of SAINT's released code, whose
    # projections (6 / 5 and 1 / 2 of all cells' features) grow without a bound; here they have 1024
    # features at most, and do not read the token of the row.
    # NOTE[DIFF]: a mixed view has 0.3 of its cells from another row and 0.8 of its own vectors; the
    # paper's formula gives the row itself 0.2, the released code 0.3, which mixes nothing unless it
    # is told to.
    def __init__(self, model: TableModel, objective: str) -> None:
        super().__init__()
        config = model.config
        self.model = model
        if objective == "auto":
            objective = "contrastive" if config.model == "saint" else "masked"
        self.objective = objective
        told = torch.zeros(config.features, dtype=torch.bool)
        told[model.covered_features] = True
        if not bool(told.any()):
            raise UserError(
                f"{config.model} reads no column of this table with attention, so there is nothing"
                " to pre-train; choose another model"
            )
        self.covered_features, self.first_feature = told, int(told.nonzero()[0])
        width = model.states_width
        self.flags = nn.Linear(width, config.features)
        self.numbers = nn.Linear(width, max(1, config.numbers))
        self.categories = nn.ModuleList(nn.Linear(width, size) for size in config.categories)
        self.project = nn.ModuleList(_build_projection(width * int(told.sum())) for _ in range(2))

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """Those of the model."""
        return self.model.stacks

    def outer_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Those of the model."""
        return self.model.outer_weights()

    def no_decay(self) -> set[str]:
        """Those of the model."""
        return {f"model.{name}" for name in self.model.no_decay()}

    def loss(self, cells: TableBatch) -> Tensor:
        """The mean loss of a batch of rows."""
        rows, device = cells.num_rows, cells.numbers.device
        other = cells.select_rows(torch.randperm(rows, device=device))
        where = torch.rand(rows, len(self.covered_features), device=device) < MASK_FRACTION
        where = where & self.covered_features.to(device)
        if self.objective == "masked":
            numbers, categories = self._reconstruction_losses(
                self.model.states(cells.masked(where)), cells, where
            )
            return numbers + categories / max(1, len(self.categories))
        mixed = cells.replace_cells(other, where)
        if self.objective == "replaced":
            return self._replacement_loss(self.model.states(mixed), mixed.differs_from(cells))
        return self._contrastive_loss(cells, mixed, where)

    def _reconstruction_losses(
        self, states: Tensor, cells: TableBatch, mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        """How badly numbers and categories at some places are guessed, only such as were there: a
        mean, and a sum of means over columns.
        """
        numbers, lost, missed = self.model.config.numbers, *states.new_zeros(2)
        if self.first_feature < numbers:
            picks = torch.einsum("bnd,nd->bn", states[:, :numbers], self.numbers.weight)
            asked = (mask[:, :numbers] & ~cells.absent).to(states.dtype)
            errors = (picks + self.numbers.bias - cells.numbers).square() * asked
            lost = errors.sum() / asked.sum().clamp_min(1)
        for place, head in enumerate(self.categories):
            present = cells.codes[:, place] != ABSENT
            asked = (mask[:, numbers + place] & present).to(states.dtype)
            losses = F.cross_entropy(
                head(states[:, numbers + place - self.first_feature]),
                cells.codes[:, place],
                reduction="none",
            )
            missed = missed + (losses * asked).sum() / asked.sum().clamp_min(1)
        return lost, missed

    def _replacement_loss(self, states: Tensor, mask: Tensor) -> Tensor:
        """How badly cells of other rows are told from a row's own."""
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

        plain = self.model.states(cells)
        hook = self.model.tokens.register_forward_hook(mix)
        try:
            states = self.model.states(mixed)
        finally:
            hook.remove()
        one, two = (
            project(F.normalize(each, dim=-1).flatten(1))
            for project, each in zip(self.project, (plain, states), strict=True)
        )
        logits = one @ two.mT / CONTRASTIVE_TEMPERATURE
        own = torch.arange(len(logits), device=logits.device)
        which = (F.cross_entropy(logits, own) + F.cross_entropy(logits.mT, own)) / 2
        everywhere = self.covered_features.to(mask.device).expand_as(mask)
        numbers, categories = self._reconstruction_losses(states, cells, everywhere)
        return CONTRASTIVE_WEIGHT * which + CATEGORY_WEIGHT * categories + NUMBER_WEIGHT * numbers


def _build_projection(width: int) -> nn.Module:
    hidden, out = (max(1, min(MAX_PROJECTION_DIM, size)) for size in (6 * width // 5, width // 2))
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, out))
