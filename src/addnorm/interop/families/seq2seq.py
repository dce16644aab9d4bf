"""Encoder-decoders: T5, and BART with the families derived from it."""

from typing import Any

import torch
from torch import Tensor

from addnorm.interop.config_reader import ConfigReader
from addnorm.interop.families.encoders import number_after_padding
from addnorm.interop.family import (
    Constant,
    Family,
    HeadVariant,
    PositionNumbering,
    Reader,
    parse_rules,
    register_families,
)
from addnorm.sublayers.positions import make_positions


def t5(f: ConfigReader) -> dict[str, Any]:
    """Read t5 and mt5."""
    f.ignore("classifier_dropout", "dense_act_fn", "is_gated_act", "is_decoder")
    gated = str(f("feed_forward_proj")).startswith("gated-")
    buckets, distance = "relative_attention_num_buckets", "relative_attention_max_distance"
    dropout = f.dropout("dropout_rate")
    return {
        "vocab": f("vocab_size"),
        "dim": f("d_model"),
        "depth": f("num_layers"),
        "heads": f("num_heads"),
        "head_dim": f("d_kv"),
        "ffn_dim": f("d_ff"),
        "norm": f"rms(eps={f('layer_norm_epsilon')!r})",
        "positions": f"t5(buckets={f(buckets)}, distance={f(distance)})",
        "activation": f.activation("dense_act_fn", gated=gated),
        "bias": False,
        "attention_scale": 1.0,
        "dropout": dropout,
        "attention_dropout": dropout,
        "activation_dropout": dropout,
    }


def t5_seq2seq(f: ConfigReader) -> dict[str, Any]:
    """Read the encoder-decoder with its head, whose logits may be scaled."""
    return {
        "depth": f("num_decoder_layers"),
        "encoder_depth": f("num_layers"),
        "tied": f.is_tied("lm_head.weight", "shared.weight"),
        "head_scale": "rsqrt_dim" if f("scale_decoder_outputs", False) else 1.0,
    }


def t5_hidden(f: ConfigReader) -> dict[str, Any]:
    """Read the encoder-decoder without a head."""
    f.ignore("tie_word_embeddings", "scale_decoder_outputs")
    return {"depth": f("num_decoder_layers"), "encoder_depth": f("num_layers")}


def t5_encoder(f: ConfigReader) -> dict[str, Any]:
    """Read the encoder alone."""
    f.ignore("tie_word_embeddings", "scale_decoder_outputs", "num_decoder_layers")
    return {}


def bart(f: ConfigReader, **overrides: Any) -> dict[str, Any]:
    """Read bart, with overrides for families that differ from it in some fields."""
    f.ignore("classifier_dropout", "encoder_layerdrop", "decoder_layerdrop", "is_decoder")
    f.ignore("max_position_embeddings", "normalize_before", "add_bias_logits", "num_hidden_layers")
    f.ignore("add_final_layer_norm", "normalize_embedding", "static_position_embeddings")
    f.ignore("force_bos_token_to_be_generated", "extra_pos_embeddings", "no_repeat_ngram_size")
    f.ignore("encoder_no_repeat_ngram_size")
    vocab = f("vocab_size")
    if "vocab" not in overrides:
        f.require(share_encoder_decoder_embeddings=True, decoder_vocab_size=vocab)
    bias = f.tensors.get("final_logits_bias")
    head = "lm_head.weight" in f.tensors
    f.ignore("tie_word_embeddings")
    return {
        "vocab": vocab,
        "dim": f("d_model"),
        "depth": f("decoder_layers"),
        "encoder_depth": f("encoder_layers"),
        "heads": f.require_equal("decoder_attention_heads", "encoder_attention_heads"),
        "ffn_dim": f.require_equal("decoder_ffn_dim", "encoder_ffn_dim"),
        "wiring": "post_ln",
        "positions": f"learned(length={f('max_position_embeddings') + 2})",
        "embed_norm": "layer",
        "embed_scale": "sqrt_dim" if f("scale_embedding") else 1.0,
        "activation": f.activation("activation_function"),
        "tied": not head or f.is_tied("lm_head.weight", "model.decoder.embed_tokens.weight"),
        "head_bias": bias is not None and not bias.is_meta and bool(bias.any()),
        "dropout": f.dropout("dropout"),
        "attention_dropout": f.dropout("attention_dropout"),
        "activation_dropout": f.dropout("activation_dropout"),
        **overrides,
    }


def bart_reader(**overrides: Any) -> Reader:
    """Return the reader of BART with some fields of our config overridden."""
    return lambda f: bart(f, **overrides)


def marian(f: ConfigReader) -> dict[str, Any]:
    """Read marian: sinusoids, or a stored table; source and target may have separate embeddings."""
    changes: dict[str, Any] = {"embed_norm": "none", "positions": "sinusoid(layout=half)"}
    tables = [value for name, value in f.tensors.items() if name.endswith("embed_positions.weight")]
    if not all(table.is_meta or is_sinusoidal(table) for table in tables):
        changes["positions"] = f"learned(length={f('max_position_embeddings')})"
    if not f("share_encoder_decoder_embeddings", True):
        changes |= {"source_vocab": f("vocab_size"), "vocab": f("decoder_vocab_size")}
    return bart(f, **changes)


def is_sinusoidal(table: Tensor) -> bool:
    """Return whether a table of positions is that of `sinusoid(layout=half)`."""
    positions = make_positions("sinusoid(layout=half)", dim=table.shape[1], heads=1)
    index = torch.arange(len(table), device=table.device)
    expected = positions.add(torch.zeros_like(table)[None], index)[0]
    return torch.allclose(table, expected, atol=1e-4)


def blenderbot(f: ConfigReader) -> dict[str, Any]:
    """Read blenderbot: Pre-LN, positions without an offset."""
    positions = f"learned(length={f('max_position_embeddings')})"
    return bart(f, wiring="pre_ln", embed_norm="none", positions=positions)


def m2m(f: ConfigReader) -> dict[str, Any]:
    """Read m2m_100 and NLLB: Pre-LN, sinusoids of fairseq, zero at padding."""
    positions = f"sinusoid(layout=half, steps=closed, silent={f('pad_token_id')})"
    return bart(f, wiring="pre_ln", embed_norm="none", positions=positions)


def _t5_stack(stack: str, kinds: tuple[str, ...]) -> str:
    lines = [
        f"{stack}.embed_tokens.weight -> embed.table",
        f"{stack}.final_layer_norm -> {stack}.final_norm",
        f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight -> "
        f"{stack}.positions.table",
    ]
    for index, kind in enumerate(kinds):
        theirs, ours = f"{stack}.block.{{i}}.layer.{index}", f"{stack}.{{i}}.{kind}"
        lines.append(f"{theirs}.layer_norm -> {ours}.norm")
        names = {"self": "SelfAttention", "cross": "EncDecAttention"}
        if kind != "ffn":
            pairs = zip("qkvo", ("q", "k", "v", "out"), strict=True)
            lines += [f"{theirs}.{names[kind]}.{a} -> {ours}.{b}_proj" for a, b in pairs]
        else:
            ffn = f"{theirs}.DenseReluDense"
            lines += [
                f"{ffn}.wi -> {ours}.up_proj",
                f"{ffn}.wi_0 -> {ours}.gate_proj",
                f"{ffn}.wi_1 -> {ours}.up_proj",
                f"{ffn}.wo -> {ours}.down_proj",
            ]
    return "\n".join(lines)


T5 = parse_rules(
    "shared.weight -> embed.table\n"
    + _t5_stack("encoder", ("self", "ffn"))
    + "\n"
    + _t5_stack("decoder", ("self", "cross", "ffn"))
)
HEAD_RULES = parse_rules("""
    lm_head.weight -> head.table
    lm_head.weight -> embed.table
    final_logits_bias -> head.bias  (reshape)
""")


def _bart_stack(stack: str, kinds: tuple[str, ...]) -> str:
    lines = [
        *(["encoder.embed_tokens.weight -> source_embed.table"] if stack == "encoder" else []),
        f"{stack}.embed_tokens.weight -> embed.table",
        f"{stack}.embed_positions.weight -> {stack}.positions.table",
        f"{stack}.layernorm_embedding -> {stack}.embed_norm",
        f"{stack}.layer_norm -> {stack}.final_norm",
    ]
    names = {"self": "self_attn", "cross": "encoder_attn"}
    for kind in kinds:
        theirs, ours = f"{stack}.layers.{{i}}", f"{stack}.{{i}}.{kind}"
        if kind == "ffn":
            lines.append(f"{theirs}.final_layer_norm -> {ours}.norm")
            lines.append(f"{theirs}.fc1 -> {ours}.up_proj")
            lines.append(f"{theirs}.fc2 -> {ours}.down_proj")
        else:
            module = f"{theirs}.{names[kind]}"
            lines.append(f"{module}_layer_norm -> {ours}.norm")
            lines += [f"{module}.{p}_proj -> {ours}.{p}_proj" for p in ("q", "k", "v", "out")]
    return "\n".join(lines)


BART = parse_rules(
    "shared.weight -> embed.table\n"
    + _bart_stack("encoder", ("self", "ffn"))
    + "\n"
    + _bart_stack("decoder", ("self", "cross", "ffn"))
)
CONSTANTS = (
    Constant("final_logits_bias", "zero", "zeros, because the head has no bias"),
    Constant("encoder.embed_positions.weight", "sinusoids", "a table of sinusoids"),
    Constant("decoder.embed_positions.weight", "sinusoids", "a table of sinusoids"),
)


def _bart_family(
    name: str, class_prefix: str, read: Reader, numbering: Any, model: str = ""
) -> Family:
    return Family(
        name=name,
        variants={
            model or f"{class_prefix}ForConditionalGeneration": HeadVariant(
                kind="seq2seq", head_rules=HEAD_RULES
            ),
            f"{class_prefix}Model": HeadVariant(
                kind="seq2seq", output_kind="hidden", without_prefix=True
            ),
        },
        read=read,
        tensors=BART,
        constants=CONSTANTS,
        numbering=numbering,
    )


def _t5_family(name: str, class_prefix: str) -> Family:
    return Family(
        name=name,
        variants={
            f"{class_prefix}ForConditionalGeneration": HeadVariant(
                kind="seq2seq", without_prefix=True, read=t5_seq2seq, head_rules=HEAD_RULES
            ),
            f"{class_prefix}Model": HeadVariant(
                kind="seq2seq", output_kind="hidden", without_prefix=True, read=t5_hidden
            ),
            f"{class_prefix}EncoderModel": HeadVariant(
                kind="classifier", output_kind="hidden", without_prefix=True, read=t5_encoder
            ),
        },
        read=t5,
        tensors=T5,
    )


PRE_LN: dict[str, Any] = {"wiring": "pre_ln"}
SINUSOIDS: dict[str, Any] = {"positions": "sinusoid(layout=half)", "embed_norm": "none"}

register_families(
    _t5_family("t5", "T5"),
    _t5_family("mt5", "MT5"),
    _bart_family("bart", "Bart", bart_reader(), PositionNumbering(offset=2)),
    _bart_family("plbart", "PLBart", bart_reader(), PositionNumbering(offset=2)),
    _bart_family("mbart", "MBart", bart_reader(**PRE_LN), PositionNumbering(offset=2)),
    _bart_family("marian", "Marian", marian, PositionNumbering(), "MarianMTModel"),
    _bart_family("pegasus", "Pegasus", bart_reader(**PRE_LN, **SINUSOIDS), PositionNumbering()),
    _bart_family("blenderbot", "Blenderbot", blenderbot, PositionNumbering()),
    _bart_family("m2m_100", "M2M100", m2m, number_after_padding),
)
