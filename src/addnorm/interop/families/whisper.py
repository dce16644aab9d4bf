"""Whisper's text decoder as a language model: Pre-LN, learned positions, keys without a bias."""

from typing import Any

from addnorm.interop.config_reader import ConfigReader
from addnorm.interop.family import Constant, Family, HeadVariant, parse_rules, register_families


def whisper(f: ConfigReader) -> dict[str, Any]:
    """Read the decoder; the fields of the audio encoder do not affect it."""
    f.ignore("encoder_attention_heads", "encoder_ffn_dim", "encoder_layers", "encoder_layerdrop")
    f.ignore("decoder_layerdrop", "max_source_positions", "num_mel_bins", "classifier_proj_size")
    f.ignore("apply_spec_augment", "use_weighted_layer_sum", "median_filter_width")
    f.ignore("num_hidden_layers", "suppress_tokens", "scale_embedding")  # which it does not read
    f.ignore(
        *(f"mask_{axis}_{what}" for axis in ("feature", "time") for what in MASKING),
    )
    return {
        "vocab": f("vocab_size"),
        "dim": f("d_model"),
        "depth": f("decoder_layers"),
        "heads": f("decoder_attention_heads"),
        "ffn_dim": f("decoder_ffn_dim"),
        "positions": f"learned(length={f('max_target_positions')})",
        "activation": f.activation("activation_function"),
        "tied": f.is_tied("proj_out.weight", "model.decoder.embed_tokens.weight"),
        "dropout": f.dropout("dropout"),
        "attention_dropout": f.dropout("attention_dropout"),
        "activation_dropout": f.dropout("activation_dropout"),
    }


MASKING = ("length", "min_masks", "prob")
WITHOUT_AUDIO = "not read without the output of the audio encoder"
CROSS_ATTENTION = (
    *(
        f"encoder_attn.{name}_proj.{leaf}"
        for name in ("q", "v", "out")
        for leaf in ("weight", "bias")
    ),
    "encoder_attn.k_proj.weight",
    "encoder_attn_layer_norm.weight",
    "encoder_attn_layer_norm.bias",
)

register_families(
    Family(
        name="whisper",
        variants={
            "WhisperForCausalLM": HeadVariant(
                kind="lm",
                head_rules=parse_rules("""
                    proj_out.weight -> head.table
                    proj_out.weight -> embed.table
                """),
                shifts_labels=False,
            )
        },
        read=whisper,
        tensors=parse_rules("""
            decoder.embed_tokens.weight -> embed.table
            decoder.embed_positions.weight -> decoder.positions.table
            decoder.layers.{i}.self_attn.q_proj -> decoder.{i}.self.q_proj
            decoder.layers.{i}.self_attn.k_proj -> decoder.{i}.self.k_proj
            decoder.layers.{i}.self_attn.v_proj -> decoder.{i}.self.v_proj
            decoder.layers.{i}.self_attn.out_proj -> decoder.{i}.self.out_proj
            decoder.layers.{i}.self_attn_layer_norm -> decoder.{i}.self.norm
            decoder.layers.{i}.fc1 -> decoder.{i}.ffn.up_proj
            decoder.layers.{i}.fc2 -> decoder.{i}.ffn.down_proj
            decoder.layers.{i}.final_layer_norm -> decoder.{i}.ffn.norm
            decoder.layer_norm -> decoder.final_norm
        """),
        constants=tuple(
            Constant(f"decoder.layers.{{i}}.{name}", "unused", WITHOUT_AUDIO)
            for name in CROSS_ATTENTION
        ),
        absent=(".k_proj.bias",),
    )
)
