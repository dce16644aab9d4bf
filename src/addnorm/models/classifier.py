"""Encoder-only classifier of texts and images."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.kernels.dropout import Dropout
from addnorm.models.base import Model, make_stack
from addnorm.models.config import Config
from addnorm.models.embeddings import PatchEmbedding, TokenEmbedding
from addnorm.models.keyword_inputs import accept_keyword_inputs
from addnorm.norms.base import check_mask, make_norm
from addnorm.stacks import Encoder

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu": F.gelu,
}


class Classifier(Model):
    """Encoder with a classification head on its first token or on the mean of all tokens.

    logits = W pool(encoder(embed(ids))) + b,    with pooler: W N(act(W_p pool(...) + b_p)) + b

    N: pooler_norm, none unless given

    Without `classes` the model returns the hidden states. Devlin et al., BERT, 2018, arXiv
    1810.04805; images: Dosovitskiy et al., ViT, 2020, arXiv 2010.11929.
    """

    loss_type = "ForSequenceClassification"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embed: TokenEmbedding | PatchEmbedding
        if config.vocab is None:
            self.embed = PatchEmbedding(config)
        else:
            self.embed = TokenEmbedding(config, config.vocab)
        self.dropout = Dropout(config.dropout)
        self.encoder = make_stack(Encoder, config)
        self.pooler = nn.Linear(config.dim, config.dim) if config.pooler else None
        self.pooler_norm = make_norm(config.pooler_norm, config.dim)
        self.act = ACTIVATIONS[config.pooler_activation]
        self.head = nn.Linear(config.dim, config.classes) if config.classes else None
        self.init_weights()

    @property
    def stacks(self) -> tuple[Encoder]:
        return (self.encoder,)

    def outer_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.embed.weights()
        yield from self.encoder.input_weights()
        for linear in (self.pooler, self.head):
            if linear is not None:
                yield "ffn_in", linear.weight
                yield "bias", linear.bias

    def hidden(
        self,
        inputs: Tensor,
        *,
        mask: Tensor | None = None,
        position_index: Tensor | None = None,
        **segments: Tensor,
    ) -> Tensor:
        """Return the hidden states of the encoder, (B, L, dim); arguments as in `forward`."""
        x = self.dropout(self.embed(inputs, **segments))
        return self.encoder(x, mask=mask, position_index=position_index)

    def pool(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool hidden states to one vector per sequence.

        Args:
            hidden: (B, L, dim) hidden states
            mask: (B, L) boolean, True at valid tokens

        Returns:
            (B, dim) pooled vectors, after the pooler if there is one; (B, L, dim) vectors of all
            tokens without pooling.
        """
        check_mask(mask, hidden)
        if self.config.pooling == "none":
            y = hidden
        elif self.config.pooling == "cls":
            y = hidden[:, 0]
        elif mask is None:
            y = hidden.mean(1)
        else:
            valid = mask.unsqueeze(-1).to(hidden.dtype)
            y = (hidden * valid).sum(1) / valid.sum(1).clamp_min(1)
        return y if self.pooler is None else self.pooler_norm(self.act(self.pooler(y)))

    @property
    def returns_hidden_states(self) -> bool:  # type: ignore[override]
        """Whether the model has no classes."""
        return self.head is None

    def compute_loss(self, logits: Tensor, labels: Tensor, num_items: Any = None) -> Tensor:
        """Return the loss of labels.

        Integers are classes (cross entropy). Floating-point labels are the targets of a regression
        (mean squared error) if there is one class, else independent labels (binary cross entropy).
        """
        if self.head is None:
            raise UserError("labels: expected a model with classes, got one without; set classes")
        if not labels.is_floating_point():
            return super().compute_loss(logits, labels, num_items)
        if labels.numel() != logits.numel():
            raise UserError(
                f"labels: expected floats of shape {tuple(logits.shape)}, got {tuple(labels.shape)}"
            )
        loss = F.mse_loss if logits.shape[-1] == 1 else F.binary_cross_entropy_with_logits
        targets = labels.view(logits.shape).to(logits)
        total = loss(logits, targets, reduction="sum")
        return total / (logits.numel() if num_items is None else num_items)

    @accept_keyword_inputs(
        input_ids="inputs",
        pixel_values="inputs",
        attention_mask="mask",
        token_type_ids="type_ids",
        position_ids="position_index",
    )
    def forward(
        self,
        inputs: Tensor,
        *,
        mask: Tensor | None = None,
        position_index: Tensor | None = None,
        **segments: Tensor,
    ) -> Tensor:
        """Return logits, (B, classes), or hidden states, (B, L, dim), without classes.

        Without pooling, the logits are those of every token, (B, L, classes).

        Args:
            inputs: (B, L) token ids, or (B, channels, side, side) pixels
            mask: (B, L) boolean, True at valid tokens
            position_index: (L) or (B, L) positions; 0, 1, 2, ... if None
            **segments: type_ids, (B, L) segment of each token, if the config has `types`
        """
        h = self.hidden(inputs, mask=mask, position_index=position_index, **segments)
        return h if self.head is None else self.head(self.pool(h, mask))
