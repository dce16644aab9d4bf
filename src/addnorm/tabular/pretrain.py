"""Pre-training on rows without a target: a table explains itself."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.models.base import Wired
from addnorm.models.tabular import Cells, TableConfig, TableModel
from addnorm.stacks import Stack
from addnorm.tabular.encoder import TableEncoder

OBJECTIVES = ("auto", "masked", "replaced", "contrastive")
HIDDEN = 0.3
"""Share of cells that are hidden or replaced."""
MIXED = 0.2
"""Share of another row in the vectors of the second view."""
HEAT = 0.7
"""Temperature of the contrastive loss."""
DENOISING = 10.0
"""Weight of the second part of SAINT's loss."""


@dataclass(frozen=True)
class Pretrained:
    """What pre-training found: how to read columns, and where to start."""

    encoder: TableEncoder
    config: TableConfig
    weights: bytes
    """Safetensors."""

    def give(self, module: TableModel) -> None:
        """Start a model from here; its head starts by itself."""
        theirs = module.config.model_dump(exclude={"outputs"})
        if theirs != self.config.model_dump(exclude={"outputs"}):
            raise UserError(
                "the model was pre-trained with other settings; call pretrain again, or fit a fresh"
                " estimator"
            )
        state = module.state_dict()
        module.load_state_dict(state | load(self.weights))


class Pretext(Wired):
    """A model with heads that ask about its cells.

    masked: a hidden number, as a squared error, and a hidden category, as a cross entropy
    replaced: whether a cell is another row's
    contrastive: which row a mixed view comes from, and what stood in its cells

    Huang et al. 2020, section 2 (the first two); Somepalli et al. 2021, section 4.
    """

    # NOTE[DIFF]: words of texts are hidden but not asked for.
    def __init__(self, model: TableModel, objective: str) -> None:
        super().__init__()
        config = model.config
        self.model = model
        if objective == "auto":
            objective = "contrastive" if config.model == "saint" else "masked"
        self.objective = objective
        told = torch.zeros(config.features, dtype=torch.bool)
        told[model.told] = True
        if not bool(told.any()):
            raise UserError(
                f"{config.model} reads no column of this table with attention, so there is nothing"
                " to pre-train; choose another model"
            )
        self.told, self.first = told, int(told.nonzero()[0])
        width = model.states_width
        self.flags = nn.Linear(width, config.features)
        self.numbers = nn.Linear(width, max(1, config.numbers))
        self.categories = nn.ModuleList(nn.Linear(width, size) for size in config.categories)
        self.project = nn.Sequential(
            nn.Linear(model.width, model.width), nn.ReLU(), nn.Linear(model.width, model.width)
        )

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """Those of the model."""
        return self.model.stacks

    def edges(self) -> Iterator[tuple[str, Tensor]]:
        """Those of the model."""
        return self.model.edges()

    def no_decay(self) -> set[str]:
        """Those of the model."""
        return {f"model.{name}" for name in self.model.no_decay()}

    def loss(self, cells: Cells) -> Tensor:
        """The mean loss of a batch of rows."""
        rows, device = cells.height, cells.numbers.device
        other = cells.rows(torch.randperm(rows, device=device))
        where = torch.rand(rows, len(self.told), device=device) < HIDDEN
        where = where & self.told.to(device)
        if self.objective == "masked":
            return self._rebuilt(self.model.states(cells.hidden(where)), cells, where)
        mixed = cells.replaced(other, where)
        if self.objective == "replaced":
            return self._noticed(self.model.states(mixed), where)
        return self._recognised(cells, mixed, where)

    def _rebuilt(self, states: Tensor, cells: Cells, where: Tensor) -> Tensor:
        """How well hidden cells are guessed; only such as were there."""
        numbers, lost = self.model.config.numbers, states.new_zeros(())
        if self.first < numbers:
            picks = torch.einsum("bnd,nd->bn", states[:, :numbers], self.numbers.weight)
            asked = (where[:, :numbers] & ~cells.absent).to(states.dtype)
            errors = (picks + self.numbers.bias - cells.numbers).square() * asked
            lost = lost + errors.sum() / asked.sum().clamp_min(1)
        for place, head in enumerate(self.categories):
            asked = where[:, numbers + place].to(states.dtype)
            losses = F.cross_entropy(
                head(states[:, numbers + place - self.first]),
                cells.codes[:, place],
                reduction="none",
            )
            lost = lost + (losses * asked).sum() / asked.sum().clamp_min(1) / len(self.categories)
        return lost

    def _noticed(self, states: Tensor, where: Tensor) -> Tensor:
        weight, bias = self.flags.weight[self.told], self.flags.bias[self.told]
        logits = torch.einsum("bnd,nd->bn", states, weight) + bias
        return F.binary_cross_entropy_with_logits(logits, where[:, self.told].to(logits.dtype))

    def _recognised(self, cells: Cells, mixed: Cells, where: Tensor) -> Tensor:
        shuffled = torch.randperm(cells.height, device=where.device)

        def mix(_module: nn.Module, _inputs: Any, tokens: Tensor) -> Tensor:
            return (1 - MIXED) * tokens + MIXED * tokens[shuffled]

        plain = F.normalize(self.project(self.model.embed(cells)), dim=-1)
        hook = self.model.tokens.register_forward_hook(mix)
        try:
            view = F.normalize(self.project(self.model.embed(mixed)), dim=-1)
            states = self.model.states(mixed)
        finally:
            hook.remove()
        logits = plain @ view.mT / HEAT
        own = torch.arange(len(logits), device=logits.device)
        both = F.cross_entropy(logits, own) + F.cross_entropy(logits.mT, own)
        return both / 2 + DENOISING * self._rebuilt(
            states, cells, self.told.to(where.device) | where
        )
