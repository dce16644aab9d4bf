"""Greedy decoding with a key-value cache, token for token like `generate` of transformers."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from addnorm.core.errors import UserError
from addnorm.interop.family import PositionNumbering
from addnorm.models import LanguageModel, Seq2Seq

# Settings of a generation config that change greedy decoding, with the values that disable them.
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "repetition_penalty": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "bad_words_ids": ([],),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "sequence_bias": ({},),
    "guidance_scale": (1.0,),
    "exponential_decay_length_penalty": (),
    "watermarking_config": (),
}


@dataclass(frozen=True)
class SpecialTokens:
    """Ids of special tokens in a generation config."""

    end_ids: tuple[int, ...] = ()
    """Tokens that end a sequence."""
    padding: int = 0
    """Token that fills finished sequences."""
    start: int | None = None
    """First token of the decoder of an encoder-decoder."""
    forced_first: int | None = None
    """Token that is forced after the start token."""
    forced_last: int | None = None
    """Token that is forced at the length limit."""

    @classmethod
    def from_generation_config(cls, generation_config: Any) -> "SpecialTokens":
        """Read a generation config; raise `UserError` for settings that greedy does not support."""
        if generation_config is None:
            return cls()
        for name, neutral in NEUTRAL_VALUES.items():
            value = getattr(generation_config, name, None)
            if value is not None and value not in neutral:
                raise UserError(
                    f"generation_config.{name}: expected None for greedy decoding, got {value!r}; "
                    "set it to None"
                )
        ends = generation_config.eos_token_id
        ends = () if ends is None else tuple(ends) if isinstance(ends, list) else (ends,)
        padding = generation_config.pad_token_id
        start = generation_config.decoder_start_token_id
        return cls(
            end_ids=ends,
            padding=(ends[0] if ends else 0) if padding is None else padding,
            start=generation_config.bos_token_id if start is None else start,
            forced_first=generation_config.forced_bos_token_id,
            forced_last=generation_config.forced_eos_token_id,
        )

    def choose(self, logits: Tensor, done: Tensor, *, is_first: bool, is_last: bool) -> Tensor:
        """Return the next token of each sequence, (B).

        Args:
            logits: (B, vocab) logits of the last position
            done: (B) boolean, sequences that have ended
            is_first: whether the token follows the start token
            is_last: whether it is the last one before the length limit
        """
        forced = self.forced_first if is_first else None
        forced = self.forced_last if is_last and self.forced_last is not None else forced
        token = logits.argmax(-1)
        token = token if forced is None else torch.full_like(token, forced)
        return token.masked_fill(done, self.padding)

    def is_end(self, token: Tensor) -> Tensor:
        """Return whether each token ends its sequence, (B)."""
        return torch.isin(token, torch.tensor(self.end_ids, device=token.device, dtype=token.dtype))


def greedy_decoder(
    model: LanguageModel,
    ids: Tensor,
    mask: Tensor | None,
    numbering: PositionNumbering,
    tokens: SpecialTokens,
    steps: int,
    *,
    restart_length: int | None = None,
) -> Tensor:
    """Continue prompts greedily; return prompt and continuation, (B, L + new).

    Args:
        model: the language model
        ids: (B, L) prompts, padded on the left
        mask: (B, L) boolean, True at valid tokens
        numbering: numbering of tokens
        tokens: special tokens
        steps: number of tokens to generate at most
        restart_length: length beyond which the cache is filled once more; None never does
    """
    if mask is not None and not bool(mask[:, -1].all()):
        raise UserError(
            "attention_mask: expected prompts padded on the left, got a masked last token"
        )
    counted = PositionNumbering("mask", offset=numbering.offset)
    index, new, cache = counted.position_index(ids, mask, None), ids, model.new_cache()
    valid = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    done = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for step in range(steps):
        logits = model(new, mask=mask, cache=cache, position_index=index)[:, -1]
        token = tokens.choose(logits, done, is_first=ids.shape[1] == 1, is_last=step == steps - 1)
        ids, new = torch.cat((ids, token[:, None]), 1), token[:, None]
        index, mask, done = index[..., -1:] + 1, None, done | tokens.is_end(token)
        if bool(done.all()):
            break
        if restart_length is not None and ids.shape[1] == restart_length + 1:
            mask = F.pad(valid, (0, ids.shape[1] - valid.shape[1]), value=True)
            index, new = counted.position_index(ids, mask, None), ids
            cache = model.new_cache()
    return ids


def greedy_seq2seq(
    model: Seq2Seq,
    ids: Tensor,
    mask: Tensor | None,
    numbering: PositionNumbering,
    tokens: SpecialTokens,
    steps: int,
) -> Tensor:
    """Generate from source sequences; return start token and generated tokens, (B, 1 + new)."""
    if tokens.start is None:
        raise UserError("generation_config.decoder_start_token_id: expected a token id, got None")
    memory = model.encode(
        ids, source_mask=mask, position_index=numbering.position_index(ids, mask, None)
    )
    generated, cache = ids.new_full((len(ids), 1), tokens.start), model.new_cache()
    done = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for step in range(steps):
        index = numbering.position_index(generated[:, -1:], None, None, past=step)
        logits = model.decode(
            generated[:, -1:], memory, source_mask=mask, cache=cache, position_index=index
        )[:, -1]
        token = tokens.choose(logits, done, is_first=step == 0, is_last=step == steps - 1)
        generated, done = torch.cat((generated, token[:, None]), 1), done | tokens.is_end(token)
        if bool(done.all()):
            break
    return generated
