"""Attributes and methods that trainers and adapters of other libraries expect of a model.

Hugging Face's Trainer, accelerate and PEFT use these names; none of these libraries is imported.
"""

import sys
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.kernels.cross_entropy import IGNORE_INDEX, cross_entropy
from addnorm.stacks import Stack

AUTO_CLASSES = "transformers.models.auto.modeling_auto"
"""Module in which the Trainer looks up whether the labels of a class are shifted."""


class TrainingInterface(nn.Module):
    """Loss of labels, gradient checkpointing and facts about the weights, by conventional names."""

    loss_type: ClassVar[str]
    """Name of the loss in transformers, which decides how the Trainer counts the labels."""
    supports_gradient_checkpointing = True
    returns_hidden_states = False
    """Whether `forward` returns hidden states, because the model has no head."""

    @property
    def accepts_loss_kwargs(self) -> bool:
        """Whether `forward` takes `num_items_in_batch`; the Trainer asks before it trains.

        With label smoothing the Trainer computes the loss itself. It shifts the labels of classes
        that are listed as causal language models only, so such a model is added to the list here.
        """
        list_as_causal(self)
        return True

    def compute_loss(self, logits: Tensor, labels: Tensor, num_items: Any = None) -> Tensor:
        """Return the loss of labels, as `model(input_ids=..., labels=...)` does.

        Args:
            logits: output of `forward`
            labels: target of each logit vector; -100 excludes it. Labels of a causal language model
                are its input tokens, which are shifted here
            num_items: divisor of the sum; the number of targets in this batch if None
        """
        if self.loss_type == "ForCausalLM":
            _check_labels(labels, logits)
            logits, labels = logits[:, :-1], labels[:, 1:]
        _check_labels(labels, logits)
        sums = cross_entropy(logits, labels.to(logits.device, torch.int64))
        # A batch without targets has the loss 0, where a mean would be NaN.
        count = sums.num_targets.clamp(min=1) if num_items is None else num_items
        return sums.loss / (count.to(logits.device) if isinstance(count, Tensor) else count)

    @property
    def device(self) -> torch.device:
        """Device of the first parameter."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the first floating-point parameter."""
        return next(each.dtype for each in self.parameters() if each.is_floating_point())

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """Return the number of parameters.

        Args:
            only_trainable: whether to count only parameters with a gradient
            exclude_embeddings: whether to leave out the tables of tokens
        """
        excluded = {id(each) for each in self._embedding_tables()} if exclude_embeddings else set()
        return sum(
            each.numel()
            for each in self.parameters()
            if id(each) not in excluded and (each.requires_grad or not only_trainable)
        )

    def _embedding_tables(self) -> list[nn.Parameter]:
        names = ("embed.table", "source_embed.table", "head.table")
        return [each for name, each in self.named_parameters() if name.endswith(names)]

    def get_input_embeddings(self) -> nn.Module:
        """Return the module that embeds the input."""
        embed: nn.Module = self.get_submodule("embed")
        return embed

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None, **options: Any
    ) -> None:
        """Recompute activations of sub-layers in the backward instead of saving them.

        Args:
            gradient_checkpointing_kwargs: {"use_reentrant": False} or None
            **options: further options of transformers, at their defaults
        """
        given = {**(gradient_checkpointing_kwargs or {}), **options}
        supported = {"use_reentrant": False, "every_n_layers": 1, "offload": False}
        for name, value in given.items():
            if name not in supported or value != supported[name]:
                wanted = f"{name}={supported[name]}" if name in supported else f"no {name}"
                raise UserError(
                    f"gradient_checkpointing_kwargs: expected {wanted}, got {name}={value!r}"
                )
        self._set_recompute(True)

    def gradient_checkpointing_disable(self) -> None:
        """Save activations, as by default."""
        self._set_recompute(False)

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether activations are recomputed in the backward."""
        return any(module.recompute for module in self.modules() if isinstance(module, Stack))

    def _set_recompute(self, recompute: bool) -> None:
        for module in self.modules():
            if isinstance(module, Stack):
                module.recompute = recompute

    def prepare_inputs_for_generation(self, *inputs: Any, **options: Any) -> dict[str, Any]:
        """Raise `UserError`: PEFT stores this method of causal models, `generate` would call it."""
        raise UserError(
            "generate: expected a model of addnorm.to_hf(model), got an addnorm model; convert it "
            "first, or use addnorm.decode"
        )


def list_as_causal(model: Any) -> None:
    """Add a class to the Trainer's list of classes with shifted labels, if it is one."""
    auto_classes = sys.modules.get(AUTO_CLASSES)
    if model.loss_type == "ForCausalLM" and auto_classes is not None:
        name = type(model).__name__
        auto_classes.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(name, name)


def _check_labels(labels: Any, logits: Tensor) -> None:
    expected = tuple(logits.shape[:-1])
    if not isinstance(labels, Tensor) or tuple(labels.shape) != expected:
        got = tuple(labels.shape) if isinstance(labels, Tensor) else type(labels).__name__
        raise UserError(
            f"labels: expected integers of shape {expected}, {IGNORE_INDEX} where there is no "
            f"target, got {got}"
        )
