"""Decoders with a fused query-key-value projection: GPT-NeoX, BLOOM, MPT, Falcon."""

from typing import Any

from addnorm.interop.config_reader import ConfigReader
from addnorm.interop.families.common import QKV, causal_variants, read_tying
from addnorm.interop.family import Family, PositionNumbering, parse_rules, register_families


def gpt_neox(f: ConfigReader) -> dict[str, Any]:
    """Read gpt_neox, the family of Pythia and GPT-NeoX-20B."""
    f.ignore("classifier_dropout", "max_position_embeddings", "is_decoder")
    bias = f("attention_bias")
    return read_tying(f, "gpt_neox.embed_in.weight") | {
        "vocab": f("vocab_size"),
        "dim": f("hidden_size"),
        "depth": f("num_hidden_layers"),
        "heads": f("num_attention_heads"),
        "ffn_dim": f("intermediate_size"),
        "wiring": "parallel(norms=own)" if f("use_parallel_residual") else "pre_ln",
        "norm": f"layer(eps={f('layer_norm_eps')!r})",
        "positions": f.rotary(partial=True),
        "activation": f.activation("hidden_act"),
        "bias": bias,
        "ffn_bias": True,
        "dropout": f.dropout("hidden_dropout"),
        "attention_dropout": f.dropout("attention_dropout"),
    }


def bloom(f: ConfigReader) -> dict[str, Any]:
    """Read bloom: ALiBi and a norm on the embedding."""
    f.ignore("slow_but_exact", "n_inner", "offset_alibi", "unk_token_id", "seq_length")
    f.ignore("attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion")
    f.require(apply_residual_connection_post_layernorm=False)
    norm = f"layer(eps={f('layer_norm_epsilon')!r})"
    dim = f("hidden_size")
    return read_tying(f, "transformer.word_embeddings.weight") | {
        "vocab": f("vocab_size"),
        "dim": dim,
        "depth": f("n_layer"),
        "heads": f("n_head"),
        "ffn_dim": 4 * dim,
        "norm": norm,
        "embed_norm": norm,
        "positions": "alibi",
        "activation": "gelu_tanh",
        "dropout": f.dropout("hidden_dropout"),
        "attention_dropout": f.dropout("attention_dropout"),
    }


def falcon(f: ConfigReader) -> dict[str, Any]:
    """Read falcon with rotary positions."""
    f.ignore("max_position_embeddings", "num_kv_heads", "multi_query", "num_ln_in_parallel_attn")
    f.require(alibi=False)
    heads, is_new, parallel = f("num_attention_heads"), f("new_decoder_architecture"), "parallel"
    if is_new:
        f.require(parallel_attn=True)
        parallel = "parallel" if f("num_ln_in_parallel_attn") == 1 else "parallel(norms=own)"
    return read_tying(f, "transformer.word_embeddings.weight") | {
        "vocab": f("vocab_size"),
        "dim": f("hidden_size"),
        "depth": f("num_hidden_layers"),
        "heads": heads,
        "kv_heads": f("num_kv_heads") if is_new else 1 if f("multi_query") else heads,
        "ffn_dim": f("ffn_hidden_size"),
        "wiring": parallel if f("parallel_attn") else "pre_ln",
        "norm": f"layer(eps={f('layer_norm_epsilon')!r})",
        "positions": f.rotary(),
        "activation": f.activation("activation"),
        "bias": f("bias"),
        "dropout": f.dropout("hidden_dropout"),
        "attention_dropout": f.dropout("attention_dropout"),
    }


def mpt(f: ConfigReader) -> dict[str, Any]:
    """Read mpt with ALiBi."""
    attention, dim, heads = f("attn_config"), f("d_model"), f("n_heads")
    f.ignore("max_seq_len", "learned_pos_emb", "init_device", "embedding_fraction", "norm_type")
    f.ignore("emb_pdrop", "verbose", "logit_scale", "no_bias", "expansion_ratio")
    expected: dict[str, Any] = {
        "alibi": True,
        "alibi_bias_max": 8,
        "clip_qkv": None,
        "prefix_lm": False,
        "qk_ln": False,
        "attn_type": "multihead_attention",
    }
    for name, value in expected.items():
        if attention[name] != value:
            f.reject(f"attn_config with {name}={attention[name]!r} (only {value!r} is supported)")
    if heads & (heads - 1):
        f.reject(f"n_heads={heads} (its ALiBi slopes equal ours for powers of 2 only)")
    return read_tying(f, "transformer.wte.weight") | {
        "vocab": f("vocab_size"),
        "dim": dim,
        "depth": f("n_layers"),
        "heads": heads,
        "ffn_dim": 4 * dim,
        "norm": f"layer(eps={f('layer_norm_epsilon')!r}, bias=False)",
        "positions": "alibi",
        "activation": "gelu",
        "bias": False,
        "attention_scale": attention["softmax_scale"],
        "dropout": f.dropout("resid_pdrop"),
        "attention_dropout": float(attention["attn_pdrop"]),
    }


BY_HEAD = f"""
    h.{{i}}.input_layernorm -> decoder.{{i}}.self.norm
    h.{{i}}.self_attention.query_key_value -> {QKV}  (by_head)
    h.{{i}}.self_attention.dense -> decoder.{{i}}.self.out_proj
    h.{{i}}.post_attention_layernorm -> decoder.{{i}}.ffn.norm
    h.{{i}}.mlp.dense_h_to_4h -> decoder.{{i}}.ffn.up_proj
    h.{{i}}.mlp.dense_4h_to_h -> decoder.{{i}}.ffn.down_proj
    ln_f -> decoder.final_norm
    word_embeddings.weight -> embed.table
"""

register_families(
    Family(
        name="gpt_neox",
        variants=causal_variants("GPTNeoXModel", "GPTNeoXForCausalLM"),
        read=gpt_neox,
        tensors=parse_rules(f"""
            embed_in.weight -> embed.table
            layers.{{i}}.input_layernorm -> decoder.{{i}}.self.norm
            layers.{{i}}.post_attention_layernorm -> decoder.{{i}}.ffn.norm
            layers.{{i}}.attention.query_key_value -> {QKV}  (by_head)
            layers.{{i}}.attention.dense -> decoder.{{i}}.self.out_proj
            layers.{{i}}.mlp.dense_h_to_4h -> decoder.{{i}}.ffn.up_proj
            layers.{{i}}.mlp.dense_4h_to_h -> decoder.{{i}}.ffn.down_proj
            final_layer_norm -> decoder.final_norm
        """),
    ),
    Family(
        name="bloom",
        variants=causal_variants("BloomModel", "BloomForCausalLM"),
        read=bloom,
        tensors=parse_rules("word_embeddings_layernorm -> decoder.embed_norm" + BY_HEAD),
        numbering=PositionNumbering("mask"),
    ),
    Family(
        name="mpt",
        variants=causal_variants("MptModel", "MptForCausalLM"),
        read=mpt,
        tensors=parse_rules(f"""
            wte.weight -> embed.table
            blocks.{{i}}.norm_1 -> decoder.{{i}}.self.norm
            blocks.{{i}}.attn.Wqkv -> {QKV}  (stack)
            blocks.{{i}}.attn.out_proj -> decoder.{{i}}.self.out_proj
            blocks.{{i}}.norm_2 -> decoder.{{i}}.ffn.norm
            blocks.{{i}}.ffn.up_proj -> decoder.{{i}}.ffn.up_proj
            blocks.{{i}}.ffn.down_proj -> decoder.{{i}}.ffn.down_proj
            norm_f -> decoder.final_norm
        """),
    ),
    Family(
        name="falcon",
        variants=causal_variants("FalconModel", "FalconForCausalLM"),
        read=falcon,
        tensors=parse_rules(
            "h.{i}.ln_attn -> decoder.{i}.self.norm\nh.{i}.ln_mlp -> decoder.{i}.ffn.norm" + BY_HEAD
        ),
    ),
)
