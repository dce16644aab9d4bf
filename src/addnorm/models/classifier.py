"""Encoder-only: a text or an image read whole, and one answer."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.kernels.dropout import Dropout
from addnorm.models.base import Model, make_stack
from addnorm.models.config import Config
from addnorm.models.embeddings import PatchEmbedding, TokenEmbedding
from addnorm.norms.base import check_mask
from addnorm.stacks import Encoder

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": F.relu,
    "gelu": F.gelu,
}


class Classifier(Model):
    """Fully visible; what stands for the sequence is its first token or the mean of all.

    logits = W pool(encoder(embed(ids))) + b,    with pooler: W act(W_p pool(...) + b_p) + b

    Without `classes` it returns the hidden states. Devlin et al., BERT, 2018, arXiv 1810.04805;
    images: Dosovitskiy et al., ViT, 2020, arXiv 2010.11929.
    """

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
        self.act = ACTIVATIONS[config.pooler_activation]
        self.head = nn.Linear(config.dim, config.classes) if config.classes else None
        self.init_weights()

    @property
    def stacks(self) -> tuple[Encoder]:
        """The encoder."""
        return (self.encoder,)

    def outer_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Embedding and head."""
        yield from self.embed.weights()
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
        """What the encoder returns, (B, L, dim); segments: type_ids, where there are any."""
        x = self.dropout(self.embed(inputs, **segments))
        return self.encoder(x, mask=mask, position_index=position_index)

    def pool(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """What stands for each sequence, (B, dim)."""
        check_mask(mask, hidden)
        if self.config.pooling == "cls":
            y = hidden[:, 0]
        elif mask is None:
            y = hidden.mean(1)
        else:
            valid = mask.unsqueeze(-1).to(hidden.dtype)
            y = (hidden * valid).sum(1) / valid.sum(1).clamp_min(1)
        return y if self.pooler is None else self.act(self.pooler(y))

    def forward(
        self,
        inputs: Tensor,
        *,
        mask: Tensor | None = None,
        position_index: Tensor | None = None,
        **segments: Tensor,
    ) -> Tensor:
        """Logits, (B, classes), or hidden states, (B, L, dim), where there are no classes.

        inputs: tokens, (B, L), or pixels, (B, channels, side, side).
        """
        h = self.hidden(inputs, mask=mask, position_index=position_index, **segments)
        return h if self.head is None else self.head(self.pool(h, mask))
