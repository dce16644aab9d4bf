"""Decoders ported from fairseq: OPT, XGLM, BioGPT."""

from typing import Any

from addnorm.interop.config_reader import ConfigReader
from addnorm.interop.families.common import causal_variants, parse_rules_inside, read_tying
from addnorm.interop.family import (
    Family,
    HeadVariant,
    PositionNumbering,
    parse_rules,
    register_families,
)


def opt(f: ConfigReader) -> dict[str, Any]:
    """Read opt: Pre-LN, or Post-LN in the 350M model."""
    f.ignore("layerdrop")
    dim, is_pre_ln = f("hidden_size"), f("do_layer_norm_before")
    f.require(word_embed_proj_dim=dim, _remove_final_layer_norm=False)
    affine = "" if f("layer_norm_elementwise_affine") else "affine=False"
    return read_tying(f, "model.decoder.embed_tokens.weight") | {
        "vocab": f("vocab_size"),
        "dim": dim,
        "depth": f("num_hidden_layers"),
        "heads": f("num_attention_heads"),
        "ffn_dim": f("ffn_dim"),
        "wiring": "pre_ln" if is_pre_ln else "post_ln",
        "norm": f"layer({affine})" if affine else "layer",
        "positions": f"learned(length={f('max_position_embeddings') + 2})",
        "activation": f.activation("activation_function"),
        "bias": f("enable_bias"),
        "dropout": f.dropout("dropout"),
        "attention_dropout": f.dropout("attention_dropout"),
    }


def xglm(f: ConfigReader) -> dict[str, Any]:
    """Read xglm: sinusoids of fairseq, zero at the padding position."""
    f.ignore("layerdrop", "max_position_embeddings")
    f.require(add_cross_attention=False)
    padding = f("pad_token_id")
    silent = "" if padding is None else f", silent={padding}"
    return read_tying(f, "model.embed_tokens.weight") | {
        "vocab": f("vocab_size"),
        "dim": f("d_model"),
        "depth": f("num_layers"),
        "heads": f("attention_heads"),
        "ffn_dim": f("ffn_dim"),
        "positions": f"sinusoid(layout=half, steps=closed{silent})",
        "embed_scale": "sqrt_dim" if f("scale_embedding") else 1.0,
        "activation": f.activation("activation_function"),
        "dropout": f.dropout("dropout"),
        "attention_dropout": f.dropout("attention_dropout"),
        "activation_dropout": f.dropout("activation_dropout"),
    }


def biogpt(f: ConfigReader) -> dict[str, Any]:
    """Read biogpt, whose norms ignore layer_norm_eps."""
    f.ignore("layerdrop", "layer_norm_eps")
    tie = f.is_tied("output_projection.weight", "biogpt.embed_tokens.weight")
    return {
        "tied": tie,
        "vocab": f("vocab_size"),
        "dim": f("hidden_size"),
        "depth": f("num_hidden_layers"),
        "heads": f("num_attention_heads"),
        "ffn_dim": f("intermediate_size"),
        "norm": "layer",
        "positions": f"learned(length={f('max_position_embeddings') + 2})",
        "embed_scale": "sqrt_dim" if f("scale_embedding") else 1.0,
        "activation": f.activation("hidden_act"),
        "dropout": f.dropout("hidden_dropout_prob"),
        "attention_dropout": f.dropout("attention_probs_dropout_prob"),
        "activation_dropout": f.dropout("activation_dropout"),
    }


FAIRSEQ = """
    embed_tokens.weight -> embed.table
    layers.{i}.self_attn_layer_norm -> decoder.{i}.self.norm
    layers.{i}.self_attn.q_proj -> decoder.{i}.self.q_proj
    layers.{i}.self_attn.k_proj -> decoder.{i}.self.k_proj
    layers.{i}.self_attn.v_proj -> decoder.{i}.self.v_proj
    layers.{i}.self_attn.out_proj -> decoder.{i}.self.out_proj
    layers.{i}.final_layer_norm -> decoder.{i}.ffn.norm
    layers.{i}.fc1 -> decoder.{i}.ffn.up_proj
    layers.{i}.fc2 -> decoder.{i}.ffn.down_proj
    embed_positions.weight -> decoder.positions.table
    layer_norm -> decoder.final_norm
    final_layer_norm -> decoder.final_norm
"""

register_families(
    Family(
        name="opt",
        variants=causal_variants("OPTModel", "OPTForCausalLM"),
        read=opt,
        tensors=parse_rules_inside("decoder", FAIRSEQ),
        numbering=PositionNumbering("mask", offset=2),
    ),
    Family(
        name="xglm",
        variants=causal_variants("XGLMModel", "XGLMForCausalLM"),
        read=xglm,
        tensors=parse_rules(FAIRSEQ),
        numbering=PositionNumbering(offset=2),
    ),
    Family(
        name="biogpt",
        variants={
            "BioGptForCausalLM": HeadVariant(
                kind="lm",
                head_rules=parse_rules("""
                    output_projection.weight -> head.table
                    output_projection.weight -> embed.table
                """),
            ),
            "BioGptModel": HeadVariant(
                kind="lm", output_kind="hidden", without_prefix=True, read=lambda f: {"tied": True}
            ),
        },
        read=biogpt,
        tensors=parse_rules(FAIRSEQ),
        numbering=PositionNumbering(offset=2),
    ),
)
