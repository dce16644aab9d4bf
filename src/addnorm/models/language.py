"""Language models: causal, with a bidirectional prefix, and masked."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.kernels.cross_entropy import LossSums
from addnorm.kernels.dropout import Dropout
from addnorm.models.base import Model, make_stack
from addnorm.models.config import Config
from addnorm.models.embeddings import TokenEmbedding, Unembedding
from addnorm.models.keyword_inputs import accept_keyword_inputs
from addnorm.norms import make_norm
from addnorm.stacks import Decoder, Encoder
from addnorm.sublayers import KVCache, masks
from addnorm.sublayers.activations import PLAIN_ACTIVATIONS


class LanguageModel(Model):
    """Decoder-only language model: each token is predicted from the tokens before it.

    logits[t] = unembed(decoder(embed(ids[: t + 1])))

    >>> from addnorm.models import build
    >>> model = build(kind="lm", vocab=50, dim=16, depth=2, heads=2)
    >>> import torch; model(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 50])
    """

    loss_type = "ForCausalLM"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert config.vocab is not None
        self.embed = TokenEmbedding(config, config.vocab)
        self.dropout = Dropout(config.dropout)
        self.decoder = make_stack(Decoder, config)
        self.head = Unembedding(config, config.vocab)
        self.init_weights()

    @property
    def stacks(self) -> tuple[Decoder]:
        return (self.decoder,)

    def outer_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.embed.weights()
        yield from self.head.weights()

    def new_cache(self) -> KVCache:
        """Return an empty key-value cache for incremental decoding."""
        return KVCache(len(self.decoder.plan.sites))

    def hidden(
        self,
        ids: Tensor,
        *,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        position_index: Tensor | None = None,
        visible: Tensor | None = None,
    ) -> Tensor:
        """Return the hidden states that the head reads, (B, L, dim); arguments as in `forward`.

        visible: (B, L, L) boolean, tokens that may be attended to instead of a causal mask
        """
        x = self.dropout(self.embed(ids))
        context = {"ids": ids} if self.decoder.takes_ids else {}
        return self.decoder(
            x, mask=mask, cache=cache, position_index=position_index, visible=visible, **context
        )

    @accept_keyword_inputs(input_ids="ids", attention_mask="mask", position_ids="position_index")
    def forward(
        self,
        ids: Tensor,
        *,
        mask: Tensor | None = None,
        cache: KVCache | None = None,
        position_index: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of the next token, (B, L, vocab).

        Args:
            ids: (B, L) token ids; with a cache, only the new tokens
            mask: (B, L) boolean, True at valid tokens
            cache: cache of earlier tokens, extended in place
            position_index: (L) or (B, L) positions; counted from the cache if None
        """
        h = self.hidden(ids, mask=mask, cache=cache, position_index=position_index)
        return self.head(h, self.embed)

    def loss(
        self, targets: Tensor, *inputs: Tensor, smoothing: float = 0.0, **options: Tensor | None
    ) -> LossSums:
        h = self.hidden(*inputs, **options)  # type: ignore[arg-type]  # no cache among them
        return self.head.loss(h, self.embed, targets, smoothing=smoothing)


class PrefixLM(Model):
    """Decoder-only language model with bidirectional attention within a prefix.

    Token t sees s if s <= t or s < prefix.

    Raffel et al., Exploring the Limits of Transfer Learning, 2020, arXiv 1910.10683, figure 4.
    """

    loss_type = "ForCausalLM"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.model = LanguageModel(config)

    @property
    def stacks(self) -> tuple[Decoder]:
        return self.model.stacks

    def outer_weights(self) -> Iterator[tuple[str, Tensor]]:
        return self.model.outer_weights()

    def get_input_embeddings(self) -> TokenEmbedding:
        return self.model.embed

    @accept_keyword_inputs(input_ids="ids", attention_mask="mask")
    def forward(self, ids: Tensor, prefix: Tensor | int, *, mask: Tensor | None = None) -> Tensor:
        """Return the logits of the next token, (B, L, vocab).

        Args:
            ids: (B, L) token ids
            prefix: length of the prefix, one integer or (B)
            mask: (B, L) boolean, True at valid tokens
        """
        batch = ids.shape[0]
        if isinstance(prefix, int):
            prefix = torch.full((batch,), prefix, device=ids.device)
        if (
            not isinstance(prefix, Tensor)
            or prefix.shape != (batch,)
            or (not torch.compiler.is_compiling() and bool((prefix < 0).any()))
        ):
            raise UserError(
                f"prefix: expected an integer >= 0, or one for each of {batch} sequences, got "
                f"{prefix!r}"
            )
        visible = masks.prefix_mask(prefix, ids.shape[1])
        return self.model.head(self.model.hidden(ids, mask=mask, visible=visible), self.model.embed)


class MaskedLM(Model):
    """Encoder-only masked language model: masked tokens are predicted from all others.

    logits = unembed(encoder(embed(ids))), or unembed(N(act(W h + b))) with head_layer

    Devlin et al., BERT, 2018, arXiv 1810.04805, section 3.1.
    """

    loss_type = "ForMaskedLM"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert config.vocab is not None
        activation = config.head_layer_activation
        if config.head_layer and activation not in PLAIN_ACTIVATIONS:
            name = "activation" if config.head_activation is None else "head_activation"
            raise UserError(
                f"{name}: expected one without a gate for head_layer, got {activation!r}; choose "
                f"one of {', '.join(PLAIN_ACTIVATIONS)}, for the head alone by head_activation"
            )
        self.embed = TokenEmbedding(config, config.vocab)
        self.dropout = Dropout(config.dropout)
        self.encoder = make_stack(Encoder, config)
        width = config.embedding_width
        self.head_matrix = nn.Linear(config.dim, width) if config.head_layer else None
        self.head_norm = make_norm(config.norm if config.head_layer else "none", width)
        self.head = Unembedding(config, config.vocab)
        self.init_weights()

    @property
    def stacks(self) -> tuple[Encoder]:
        return (self.encoder,)

    def outer_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.embed.weights()
        yield from self.encoder.input_weights()
        yield from self.head.weights()
        if self.head_matrix is not None:
            yield "ffn_in", self.head_matrix.weight
            yield "bias", self.head_matrix.bias

    def hidden(
        self,
        ids: Tensor,
        *,
        mask: Tensor | None = None,
        type_ids: Tensor | None = None,
        position_index: Tensor | None = None,
    ) -> Tensor:
        """Return the hidden states of the encoder, (B, L, dim); arguments as in `forward`."""
        x = self.dropout(self.embed(ids, type_ids))
        return self.encoder(x, mask=mask, position_index=position_index)

    @accept_keyword_inputs(
        input_ids="ids",
        attention_mask="mask",
        token_type_ids="type_ids",
        position_ids="position_index",
    )
    def forward(
        self,
        ids: Tensor,
        *,
        mask: Tensor | None = None,
        type_ids: Tensor | None = None,
        position_index: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of every token, (B, L, vocab).

        Args:
            ids: (B, L) token ids
            mask: (B, L) boolean, True at valid tokens
            type_ids: (B, L) segments, if the config has `types`
            position_index: (L) or (B, L) positions; 0, 1, 2, ... if None
        """
        h = self.hidden(ids, mask=mask, type_ids=type_ids, position_index=position_index)
        if self.head_matrix is not None:
            activation = PLAIN_ACTIVATIONS[self.config.head_layer_activation]
            h = self.head_norm(activation(self.head_matrix(h)))
        return self.head(h, self.embed)
