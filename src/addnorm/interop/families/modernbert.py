"""ModernBERT: Pre-LN without the first norm, gated feed-forward, rotary positions, windows."""

from typing import Any

from addnorm.interop.config_reader import ConfigReader, find_cycle
from addnorm.interop.families.encoders import BACKBONE
from addnorm.interop.family import Family, parse_rules, register_families


def modernbert(f: ConfigReader) -> dict[str, Any]:
    """Read the backbone; heads have a norm after their activation, or no bias."""
    f.ignore("tie_word_embeddings", "classifier_pooling", "classifier_dropout", "classifier_bias")
    f.ignore(
        "classifier_activation", "decoder_bias", "sparse_prediction", "sparse_pred_ignore_index"
    )
    f.ignore("deterministic_flash_attn", "reference_compile", "repad_logits_with_grad")
    f.ignore("max_position_embeddings", "initializer_cutoff_factor", "cls_token_id")
    f.ignore("global_attn_every_n_layers", "norm_bias", "position_embedding_type")
    norm = f"layer(eps={f('norm_eps')!r}{'' if f('norm_bias') else ', bias=False'})"
    reach = f("local_attention") // 2 + 1  # tokens on each side, the token itself included
    windows = [reach if each == "sliding_attention" else None for each in f("layer_types")]
    return {
        "vocab": f("vocab_size"),
        "dim": f("hidden_size"),
        "depth": f("num_hidden_layers"),
        "heads": f("num_attention_heads"),
        "ffn_dim": f("intermediate_size"),
        "wiring": "pre_ln(first_norm=False)",
        "norm": norm,
        "embed_norm": norm,
        "positions": f.rotary(),
        "window": find_cycle(windows),
        "activation": f.activation("hidden_activation", gated=True),
        "bias": f("attention_bias"),
        "ffn_bias": f("mlp_bias"),
        "dropout": f.dropout("embedding_dropout", "mlp_dropout"),
        "attention_dropout": f.dropout("attention_dropout"),
    }


register_families(
    Family(
        name="modernbert",
        variants={"ModernBertModel": BACKBONE},
        read=modernbert,
        tensors=parse_rules("""
            embeddings.tok_embeddings.weight -> embed.table
            embeddings.norm -> encoder.embed_norm
            layers.{i}.attn_norm -> encoder.{i}.self.norm
            layers.{i}.attn.Wqkv -> encoder.{i}.self.q_proj, encoder.{i}.self.k_proj, \
encoder.{i}.self.v_proj  (stack)
            layers.{i}.attn.Wo -> encoder.{i}.self.out_proj
            layers.{i}.mlp_norm -> encoder.{i}.ffn.norm
            layers.{i}.mlp.Wi -> encoder.{i}.ffn.gate_proj, encoder.{i}.ffn.up_proj  (stack)
            layers.{i}.mlp.Wo -> encoder.{i}.ffn.down_proj
            final_norm -> encoder.final_norm
        """),
    )
)
