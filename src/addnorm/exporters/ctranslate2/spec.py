"""CTranslate2 specifications of plain models, built without a detour over other formats.

CTranslate2 has one specification per kind of model, and flags for the form of its layers:
`pre_norm` of a stack, `pre_post_layer_norm` (Sandwich-LN) and `parallel_residual`. What it cannot
express is refused with the site and the term.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from addnorm.data.tokenizer import END, SPECIALS, START, UNKNOWN
from addnorm.exporters.ctranslate2.layers import (
    StackWriter,
    check_stack,
    count_stack_positions,
    set_linear,
)
from addnorm.exporters.ctranslate2.library import import_ctranslate2
from addnorm.exporters.ctranslate2.norms import NormWriter
from addnorm.exporters.ctranslate2.refusal import refuse, to_array
from addnorm.models import Classifier, LanguageModel, MaskedLM, Model, Seq2Seq
from addnorm.models.embeddings import TokenEmbedding, Unembedding

MAX_LENGTH = 1024
"""Positions that are stored for encodings without a limit of their own."""


def build_spec(
    model: Model,
    tokens: Sequence[str] | None = None,
    *,
    max_length: int = MAX_LENGTH,
    add_source_end: bool = True,
    end: int = END,
) -> Any:
    """Return the CTranslate2 specification of a plain model, with its weights in float32.

    Args:
        model: Seq2Seq, LanguageModel, MaskedLM or Classifier of token ids
        tokens: names of the tokens, in the order of their ids; generic names if None
        max_length: positions to store, unless they are learned
        add_source_end: whether the engine appends the end token to a source (Seq2Seq)
        end: token that ends a text

    Raises:
        UserError: CTranslate2 cannot express the model
    """
    specs = import_ctranslate2().specs
    for stack in model.stacks:
        check_stack(stack)
    norms = NormWriter.from_model(model)
    if isinstance(model, Seq2Seq):
        encoder = _build_encoder(model, norms, max_length)
        decoder = _build_decoder(model, norms, max_length)
        spec = specs.TransformerSpec(encoder, decoder)
        source_vocab = model.config.source_vocab or model.config.vocab
        spec.register_source_vocabulary(_name_tokens(tokens, source_vocab))
        spec.register_target_vocabulary(_name_tokens(tokens, model.config.vocab))
        spec.config.decoder_start_token = SPECIALS[START]
        spec.config.add_source_bos, spec.config.add_source_eos = False, add_source_end
    elif isinstance(model, LanguageModel):
        spec = specs.TransformerDecoderModelSpec(_build_decoder(model, norms, max_length))
        spec.register_vocabulary(_name_tokens(tokens, model.config.vocab))
    elif isinstance(model, Classifier | MaskedLM) and model.config.image is None:
        spec = _build_encoder_model(model, norms, max_length)
        spec.register_vocabulary(_name_tokens(tokens, model.config.vocab))
    else:
        what = "images" if model.config.image is not None else f"kind {model.config.kind!r}"
        raise refuse("model", what)
    spec.config.bos_token, spec.config.eos_token = SPECIALS[START], SPECIALS[end]
    spec.config.unk_token = SPECIALS[UNKNOWN]
    spec.config.layer_norm_epsilon = norms.eps
    return spec


def _name_tokens(tokens: Sequence[str] | None, vocab: int | None) -> list[str]:
    assert vocab is not None
    if vocab < len(SPECIALS):
        raise refuse("embed", f"{vocab} tokens, fewer than the special ones")
    if tokens is None:
        return [*SPECIALS, *(f"<{index}>" for index in range(len(SPECIALS), vocab))]
    names = list(tokens)
    if len(names) != vocab or len(set(names)) != vocab:
        raise refuse(
            "tokenizer", f"{len(set(names))} different tokens for an embedding of {vocab} rows"
        )
    return names


def _build_encoder(model: Model, norms: NormWriter, max_length: int) -> Any:
    embed: TokenEmbedding = model.embed  # type: ignore[assignment]
    if isinstance(model, Seq2Seq) and model.source_embed is not None:
        embed = model.source_embed
    writer = StackWriter(model.stacks[0], "encoder", norms)
    spec = writer.build(num_embeddings=2 if embed.types is not None else 1)
    writer.set_positions(spec, max_length)
    rows = embed.rows * writer.entry_scale
    spec.embeddings[0].weight = to_array(rows)
    if embed.types is not None:  # the engine multiplies the sum of both with the factor
        spec.embeddings[1].weight = to_array(embed.types * writer.entry_scale / embed.factor)
    spec.scale_embeddings = _scale(embed.factor)
    return spec


def _build_decoder(model: Seq2Seq | LanguageModel, norms: NormWriter, max_length: int) -> Any:
    writer = StackWriter(model.decoder, "decoder", norms)
    spec = writer.build()
    writer.set_positions(spec, max_length)
    spec.embeddings.weight = to_array(model.embed.rows * writer.entry_scale)
    spec.scale_embeddings = _scale(model.embed.factor)
    head: Unembedding = model.head
    set_linear(spec.projection, head.rows(model.embed), head.bias)
    if head.factor != 1:
        spec.scale_outputs = np.float32(head.factor)
    if head.cap is not None:
        spec.final_logit_softcapping = np.float32(head.cap)
    return spec


def _build_encoder_model(model: Classifier | MaskedLM, norms: NormWriter, max_length: int) -> Any:
    ct2 = import_ctranslate2()
    encoder = _build_encoder(model, norms, max_length)
    pooler = model.pooler if isinstance(model, Classifier) else None
    activations = ct2.specs.Activation
    names = {"tanh": activations.Tanh, "relu": activations.RELU, "gelu": activations.GELU}
    # The engine pools the first token only; the mean is left to the caller.
    if pooler is None or model.config.pooling != "cls":
        return ct2.specs.TransformerEncoderModelSpec(encoder)
    spec = ct2.specs.TransformerEncoderModelSpec(
        encoder, pooling_layer=True, pooling_activation=names[model.config.pooler_activation]
    )
    set_linear(spec.pooler_dense, pooler.weight, pooler.bias)
    return spec


def _scale(factor: float) -> Any:
    return False if factor == 1 else np.float32(factor)


def head_tensors(model: Model) -> dict[str, Tensor]:
    """Return the weights that an encoder specification lacks: those of the head."""
    if not isinstance(model, Classifier | MaskedLM):
        return {}
    prefixes = ("head.", "head_matrix.", "head_norm.", "pooler.", "pooler_norm.")
    state = {
        name: value.detach().float()
        for name, value in model.state_dict().items()
        if name.startswith(prefixes)
    }
    if isinstance(model, MaskedLM):
        state["head.table"] = model.head.rows(model.embed).detach().float()
    return {name: value.to(torch.float32).contiguous() for name, value in state.items()}


def count_positions(model: Model, max_length: int = MAX_LENGTH) -> list[int | None]:
    """Return the number of stored positions of the first and the last stack; None without any."""
    lengths = [count_stack_positions(stack, max_length) for stack in model.stacks]
    return [lengths[0], lengths[-1]]
