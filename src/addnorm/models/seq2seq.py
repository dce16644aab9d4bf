"""Encoder-decoder model."""

from collections.abc import Iterator

from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.kernels.cross_entropy import IGNORE_INDEX, LossSums
from addnorm.kernels.dropout import Dropout
from addnorm.models.base import Model, make_stack
from addnorm.models.config import Config
from addnorm.models.embeddings import TokenEmbedding, Unembedding
from addnorm.models.keyword_inputs import accept_keyword_inputs
from addnorm.stacks import Decoder, Encoder
from addnorm.sublayers import KVCache


class Seq2Seq(Model):
    """Encoder-decoder Transformer: the decoder attends to the output of the encoder.

    memory    = encoder(embed(source))
    logits[t] = unembed(decoder(embed(target[: t + 1]), memory))

    Source and target share an embedding unless `source_vocab` is set. Encoder and decoder may have
    different wirings. Vaswani et al. 2017, arXiv 1706.03762, section 3.
    """

    loss_type = "ForMaskedLM"  # labels are not shifted: the decoder's input is

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
        return self.encoder, self.decoder

    def outer_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.embed.weights()
        if self.source_embed is not None:
            yield from self.source_embed.weights()
        yield from self.head.weights()

    def new_cache(self) -> KVCache:
        """Return an empty key-value cache for incremental decoding."""
        return KVCache(len(self.decoder.plan.sites))

    def encode(
        self,
        source: Tensor,
        *,
        source_mask: Tensor | None = None,
        position_index: Tensor | None = None,
    ) -> Tensor:
        """Encode source sequences.

        Args:
            source: (B, S) token ids
            source_mask: (B, S) boolean, True at valid tokens
            position_index: (S) or (B, S) positions; 0, 1, 2, ... if None

        Returns:
            (B, S, dim) memory that the decoder attends to.
        """
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
        """Return the hidden states that the head reads, (B, L, dim); arguments as in `decode`."""
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
        """Return the logits of the next token, (B, L, vocab).

        Args:
            target: (B, L) token ids; with a cache, only the new tokens
            memory: (B, S, dim) output of `encode`
            source_mask: (B, S) boolean, True at valid source tokens
            target_mask: (B, L) boolean, True at valid target tokens
            cache: cache of earlier target tokens, extended in place
            position_index: (L) or (B, L) positions; counted from the cache if None
        """
        h = self.hidden(
            target,
            memory,
            source_mask=source_mask,
            target_mask=target_mask,
            cache=cache,
            position_index=position_index,
        )
        return self.head(h, self.embed)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Return the decoder's input for labels: shifted by one, after the start token.

        Args:
            labels: (B, L) target tokens; -100 becomes the padding token

        Returns:
            (B, L) tokens; start and padding are those of the config.
        """
        config = self.config
        start = (
            config.bos_token_id
            if config.decoder_start_token_id is None
            else (config.decoder_start_token_id)
        )
        if start is None:
            raise UserError("config.decoder_start_token_id: expected a token id, got None")
        ids = labels.roll(1, dims=1)
        ids[:, 0] = start
        return ids.masked_fill(ids == IGNORE_INDEX, config.pad_token_id or 0)

    @accept_keyword_inputs(
        input_ids="source",
        attention_mask="source_mask",
        decoder_input_ids="target",
        decoder_attention_mask="target_mask",
    )
    def forward(
        self,
        source: Tensor,
        target: Tensor,
        *,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of the next target token, (B, L, vocab).

        Args:
            source: (B, S) token ids
            target: (B, L) token ids, starting with the start-of-sequence token
            source_mask: (B, S) boolean, True at valid tokens
            target_mask: (B, L) boolean, True at valid tokens
        """
        memory = self.encode(source, source_mask=source_mask)
        return self.decode(target, memory, source_mask=source_mask, target_mask=target_mask)

    def loss(
        self, targets: Tensor, *inputs: Tensor, smoothing: float = 0.0, **options: Tensor | None
    ) -> LossSums:
        source, target = inputs
        memory = self.encode(source, source_mask=options.get("source_mask"))
        h = self.hidden(target, memory, **options)  # type: ignore[arg-type]  # no cache among them
        return self.head.loss(h, self.embed, targets, smoothing=smoothing)
