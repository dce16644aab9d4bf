"""Batch, loss and optimizer of a coordinate check."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.doctor.loading.example_inputs import guess_inputs
from addnorm.models import Model, scale_groups
from addnorm.models.base import WiredModule
from addnorm.transfer.recording import first_tensor

BATCH_SIZE, LENGTH = 8, 32
TARGET_SEED = 20


@dataclass(frozen=True)
class Batch:
    """Inputs of a model."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    original: Any = None
    """The batch as the user gave it."""

    def call(self, model: nn.Module) -> Any:
        """Return the output of a model."""
        return model(*self.args, **self.kwargs)


def make_batch(batch: Any, model: nn.Module, width: int) -> Batch:
    """Return the batch of a model; tokens for models of addnorm, guessed for others if None."""
    if callable(batch) and not isinstance(batch, Tensor):
        batch = batch(width)
    if batch is None:
        batch = _make_tokens(model) if isinstance(model, Model) else guess_inputs(model)
    if isinstance(batch, dict):
        return Batch(kwargs=dict(batch), original=batch)
    if isinstance(batch, tuple | list):
        return Batch(args=tuple(batch), original=batch)
    return Batch(args=(batch,), original=batch)


def make_loss(
    loss: Callable[..., Tensor] | None, model: nn.Module
) -> Callable[[Any, Batch], Tensor]:
    """Return a function of the output and the batch."""
    if loss is not None:
        return lambda output, batch: loss(output, batch.original)
    if isinstance(model, Model) and model.config.vocab and model.config.kind != "classifier":
        return _next_token_loss
    return _distance_loss


def make_optimizer(
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | str, model: nn.Module, lr: float
) -> torch.optim.Optimizer:
    """Return the optimizer of a model."""
    if callable(optimizer):
        return optimizer(model)
    classes: dict[str, Any] = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    if optimizer not in classes:
        raise UserError(
            f'optimizer: expected "adam", "sgd" or a function of the model, got {optimizer!r}'
        )
    is_ours = any(isinstance(each, WiredModule) for each in model.modules())
    groups: Any = (
        scale_groups(model, lr=lr, weight_decay=0.0, optimizer=optimizer)
        if is_ours
        else model.parameters()
    )
    made: torch.optim.Optimizer = classes[optimizer](groups, lr=lr)
    return made


def _make_tokens(model: Model) -> Any:
    """Return a batch of a Markov chain: half of the tokens follow from the one before."""
    config = model.config
    generator = torch.Generator().manual_seed(TARGET_SEED)
    if config.vocab is None:
        assert config.image is not None
        shape = (BATCH_SIZE, config.channels, config.image, config.image)
        return torch.randn(shape, generator=generator)
    vocab = min(config.vocab, config.source_vocab or config.vocab)
    table = torch.randperm(vocab, generator=generator)
    ids = torch.randint(vocab, (BATCH_SIZE, LENGTH), generator=generator)
    follows = torch.rand(BATCH_SIZE, LENGTH, generator=generator) < 0.5
    for position in range(1, LENGTH):
        known = follows[:, position]
        ids[known, position] = table[ids[known, position - 1]]
    if config.kind == "seq2seq":
        return ids, ids
    return (ids, 1) if config.kind == "prefix_lm" else ids


def _next_token_loss(output: Any, batch: Batch) -> Tensor:
    ids = batch.args[-1] if isinstance(batch.args[-1], Tensor) else batch.args[0]
    logits = first_tensor(output)
    assert logits is not None
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def _distance_loss(output: Any, batch: Batch) -> Tensor:
    """Mean squared distance to a target that is the same for all models with such an output."""
    tensor = first_tensor(output)
    if tensor is None:
        raise UserError("loss: expected a model with a floating-point output, or loss=...")
    generator = torch.Generator().manual_seed(TARGET_SEED)
    target = torch.randn(tensor.shape, generator=generator).to(tensor)
    return F.mse_loss(tensor, target)
