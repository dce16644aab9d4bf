"""Encoder-decoder: a sequence read whole, another written token by token."""

from collections.abc import Iterator

from torch import Tensor

from addnorm.kernels.cross_entropy import LossSums
from addnorm.kernels.dropout import Dropout
from addnorm.models.base import Model, make_stack
from addnorm.models.config import Config
from addnorm.models.embeddings import TokenEmbedding, Unembedding
from addnorm.stacks import Decoder, Encoder
from addnorm.sublayers import KVCache


class Seq2Seq(Model):
    """The original Transformer: an encoder, and a decoder that attends to it.

    memory    = encoder(embed(source))
    logits[t] = unembed(decoder(embed(target[: t + 1]), memory))

    Source and target share their table unless `source_vocab` is given; encoder and decoder may be
    wired differently. Vaswani et al. 2017, arXiv 1706.03762, section 3.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        assert config.vocab is not None
        depths = config.encoder_depth or config.depth, config.depth
        self.embed = TokenEmbedding(config, config.vocab)
        self.source_embed = (
            None if config.source_vocab is None else TokenEmbedding(config, config.source_vocab)
        )
        self.dropout = Dropout(config.dropout)
        self.encoder = make_stack(
            Encoder,
            config,
            depth=depths[0],
            other_depth=depths[1],
            wiring=config.encoder_wiring or config.wiring,
            norm=config.encoder_norm or config.norm,
        )
        self.decoder = make_stack(Decoder, config, other_depth=depths[0])
        self.head = Unembedding(config, config.vocab)
        self.init_weights()

    @property
    def stacks(self) -> tuple[Encoder, Decoder]:
        """The encoder and the decoder."""
        return self.encoder, self.decoder

    def outer_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Embeddings and head."""
        yield from self.embed.weights()
        if self.source_embed is not None:
            yield from self.source_embed.weights()
        yield from self.head.weights()

    def new_cache(self) -> KVCache:
        """An empty cache for decoding step by step."""
        return KVCache(len(self.decoder.plan.sites))

    def encode(
        self,
        source: Tensor,
        *,
        source_mask: Tensor | None = None,
        position_index: Tensor | None = None,
    ) -> Tensor:
        """What the decoder attends to, (B, S, dim)."""
        embed = self.embed if self.source_embed is None else self.source_embed
        x = self.dropout(embed(source))
        return self.encoder(x, mask=source_mask, position_index=position_index)

    def hidden(
        self,
        target: Tensor,
        memory: Tensor,
        *,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        cache: KVCache | None = None,
        position_index: Tensor | None = None,
    ) -> Tensor:
        """What the head reads, (B, L, dim); with a cache, target holds the new tokens."""
        return self.decoder(
            self.dropout(self.embed(target)),
            mask=target_mask,
            memory=memory,
            memory_mask=source_mask,
            cache=cache,
            position_index=position_index,
        )

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        *,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
        cache: KVCache | None = None,
        position_index: Tensor | None = None,
    ) -> Tensor:
        """Logits of the next token, (B, L, vocab); with a cache, target holds the new tokens."""
        h = self.hidden(
            target,
            memory,
            source_mask=source_mask,
            target_mask=target_mask,
            cache=cache,
            position_index=position_index,
        )
        return self.head(h, self.embed)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits of the next target token, (B, L, vocab).

        source: (B, S), target: (B, L), beginning with the token that starts a sequence; masks are
        True at valid tokens.
        """
        memory = self.encode(source, source_mask=source_mask)
        return self.decode(target, memory, source_mask=source_mask, target_mask=target_mask)

    def loss(
        self, targets: Tensor, *inputs: Tensor, smoothing: float = 0.0, **options: Tensor | None
    ) -> LossSums:
        """As of every model, without holding all logits."""
        source, target = inputs
        memory = self.encode(source, source_mask=options.get("source_mask"))
        h = self.hidden(target, memory, **options)  # type: ignore[arg-type]  # no cache among them
        return self.head.loss(h, self.embed, targets, smoothing=smoothing)
