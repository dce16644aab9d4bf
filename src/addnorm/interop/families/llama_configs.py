"""Configs of LLaMA and of the many decoders that are LLaMA with other data."""

from typing import Any

from addnorm.interop.config_reader import ConfigReader
from addnorm.interop.families.common import read_tying

TABLE = "model.embed_tokens.weight"


def read_common(f: ConfigReader, norm: str, eps: str = "rms_norm_eps") -> dict[str, Any]:
    """What all of them have; `norm` is ours, with a place for its eps."""
    f.ignore("max_position_embeddings")
    heads, head_dim = f("num_attention_heads"), f("head_dim", None)
    own = head_dim is not None and head_dim * heads != f("hidden_size")
    return read_tying(f, TABLE) | {
        "vocab": f("vocab_size"),
        "dim": f("hidden_size"),
        "depth": f("num_hidden_layers"),
        "heads": heads,
        "kv_heads": f("num_key_value_heads", None) or heads,
        "head_dim": head_dim if own else None,
        "ffn_dim": f("intermediate_size"),
        "norm": norm.format(eps=f(eps)) if "{" in norm else norm,
        "bias": False,
        "attention_dropout": float(f("attention_dropout", 0.0)),
    }


def like_llama(f: ConfigReader, **overrides: Any) -> dict[str, Any]:
    """LLaMA, and what differs from it."""
    values = read_common(f, "rms(eps={eps!r})") | {
        "activation": f.activation("hidden_act", gated=True)
    }
    values |= {} if "positions" in overrides else {"positions": f.rotary()}
    values |= {"bias": bool(f("attention_bias", False)), "ffn_bias": bool(f("mlp_bias", False))}
    return values | overrides


def read_windows(f: ConfigReader) -> dict[str, Any]:
    """Windows of Qwen 2 and 3: by the list of layers, which needs no flags."""
    f.ignore("use_sliding_window", "max_window_layers")
    return {"window": f.windows("sliding_window", "layer_types")}


def mistral(f: ConfigReader) -> dict[str, Any]:
    """mistral"""
    return like_llama(f, window=f.windows("sliding_window"))


def qwen2(f: ConfigReader) -> dict[str, Any]:
    """qwen2: biases on queries, keys and values only"""
    return like_llama(f, bias=True, out_bias=False) | read_windows(f)


def qwen3(f: ConfigReader) -> dict[str, Any]:
    """qwen3: a norm in every head"""
    return like_llama(f, qk_norm=f"rms_head(eps={f('rms_norm_eps')!r})") | read_windows(f)


def ministral(f: ConfigReader) -> dict[str, Any]:
    """ministral: windows by the list of layers"""
    return like_llama(f, window=f.windows("sliding_window", "layer_types"))


def seed_oss(f: ConfigReader) -> dict[str, Any]:
    """seed_oss"""
    out, dropout = bool(f("attention_out_bias")), f.dropout("residual_dropout")
    return like_llama(f, out_bias=out, dropout=dropout)


def ernie4_5(f: ConfigReader) -> dict[str, Any]:
    """ernie4_5, whose rotation pairs neighbours"""
    bias = bool(f("use_bias"))
    values = read_common(f, "rms(eps={eps!r})") | {"bias": bias, "ffn_bias": bias}
    values["activation"] = f.activation("hidden_act", gated=True)
    return values | {"positions": f.rotary(layout="interleaved")}


def exaone4(f: ConfigReader) -> dict[str, Any]:
    """exaone4 without windows; with them, only some of its layers turn"""
    f.require(sliding_window=None)
    f.ignore("sliding_window_pattern", "layer_types")
    norm = f"rms_head(eps={f('rms_norm_eps')!r})"
    return like_llama(f, wiring="res_post", qk_norm=norm)


def smollm3(f: ConfigReader) -> dict[str, Any]:
    """smollm3, if all its layers turn"""
    f.ignore("no_rope_layer_interval")
    if not all(f("no_rope_layers", None) or [1]):
        f.reject(f"no_rope_layers={f('no_rope_layers')!r} (layers without positions)")
    return like_llama(f) | read_windows(f)


def granite(f: ConfigReader) -> dict[str, Any]:
    """granite: factors everywhere, of which we have no place for that of the residual"""
    f.require(residual_multiplier=1.0)
    return like_llama(
        f,
        scale=f("attention_multiplier"),
        embed_scale=f("embedding_multiplier"),
        head_scale=1.0 / f("logits_scaling"),
    )


def helium(f: ConfigReader) -> dict[str, Any]:
    """helium, whose rotation pairs neighbours"""
    return like_llama(f, positions=f.rotary(layout="interleaved"), out_bias=False)


def glm(f: ConfigReader) -> dict[str, Any]:
    """glm and glm4: half of each head turns, in pairs of neighbours"""
    positions = f.rotary(layout="interleaved", partial=True)
    return like_llama(f, positions=positions, out_bias=False)


def glm4(f: ConfigReader) -> dict[str, Any]:
    """glm4: norms before and after"""
    return glm(f) | {"wiring": "sandwich"}


def gemma(f: ConfigReader, **overrides: Any) -> dict[str, Any]:
    """gemma: gains around 1, large embeddings"""
    if f("use_bidirectional_attention", None):
        f.reject("use_bidirectional_attention=True (a decoder sees what is before it)")
    activation = "hidden_activation" if "hidden_activation" in f.values else "hidden_act"
    return read_common(f, "rms(eps={eps!r}, gain=one_plus)") | {
        "positions": f.rotary(),
        "activation": f.activation(activation, gated=True),
        "bias": bool(f("attention_bias")),
        "ffn_bias": False,
        "embed_scale": "sqrt_dim",
        **overrides,
    }


def gemma2(f: ConfigReader) -> dict[str, Any]:
    """gemma2: norms before and after, bounded logits, windows"""
    return gemma(
        f,
        wiring="sandwich",
        scale=f("query_pre_attn_scalar") ** -0.5,
        cap=f("attn_logit_softcapping"),
        head_cap=f("final_logit_softcapping"),
        window=f.windows("sliding_window", "layer_types"),
    )


def vaultgemma(f: ConfigReader) -> dict[str, Any]:
    """vaultgemma: gemma2 with the norms before only"""
    return gemma2(f) | {"wiring": "pre_ln"}


def olmo(f: ConfigReader) -> dict[str, Any]:
    """olmo: LayerNorm without gain and bias"""
    f.require(clip_qkv=None)
    values = read_common(f, "layer(affine=False)")
    values |= {"positions": f.rotary(), "activation": f.activation("hidden_act", gated=True)}
    return values | {"bias": bool(f("attention_bias")), "ffn_bias": False}


def olmo2(f: ConfigReader) -> dict[str, Any]:
    """olmo2 and olmo3: norms on the branches, and one over all queries and all keys"""
    return like_llama(f, wiring="res_post", qk_norm=f"rms(eps={f('rms_norm_eps')!r})")


def olmo3(f: ConfigReader) -> dict[str, Any]:
    """olmo3: olmo2 with windows"""
    return olmo2(f) | {"window": f.windows("sliding_window", "layer_types")}


def phi(f: ConfigReader) -> dict[str, Any]:
    """phi: attention and feed-forward side by side, biases everywhere"""
    f.require(qk_layernorm=False)
    return read_common(f, "layer(eps={eps!r})", "layer_norm_eps") | {
        "wiring": "parallel",
        "positions": f.rotary(partial=True),
        "activation": f.activation("hidden_act"),
        "bias": True,
        "dropout": f.dropout("resid_pdrop", "embd_pdrop"),
    }


def phi3(f: ConfigReader) -> dict[str, Any]:
    """phi3"""
    f.ignore("original_max_position_embeddings")
    dropout, positions = f.dropout("resid_pdrop", "embd_pdrop"), f.rotary(partial=True)
    window = f.windows("sliding_window")
    return like_llama(f, positions=positions, window=window, dropout=dropout)


def stablelm(f: ConfigReader) -> dict[str, Any]:
    """stablelm: LLaMA with LayerNorm, side by side if it says so"""
    f.require(qk_layernorm=False)
    return read_common(f, "layer(eps={eps!r})", "layer_norm_eps") | {
        "wiring": "parallel" if f("use_parallel_residual") else "pre_ln",
        "positions": f.rotary(partial=True),
        "activation": f.activation("hidden_act", gated=True),
        "bias": bool(f("use_qkv_bias")),
        "out_bias": False,
        "ffn_bias": False,
        "dropout": f.dropout("hidden_dropout"),
    }


def starcoder2(f: ConfigReader) -> dict[str, Any]:
    """starcoder2"""
    return read_common(f, "layer(eps={eps!r})", "norm_epsilon") | {
        "positions": f.rotary(),
        "activation": f.activation("hidden_act"),
        "window": f.windows("sliding_window"),
        "bias": bool(f("use_bias")),
        "dropout": f.dropout("residual_dropout", "embedding_dropout"),
    }


def cohere(f: ConfigReader) -> dict[str, Any]:
    """cohere: side by side, LayerNorm without bias"""
    f.require(use_qk_norm=False)
    return read_common(f, "layer(eps={eps!r}, bias=False)", "layer_norm_eps") | {
        "wiring": "parallel",
        "positions": f.rotary(layout="interleaved"),
        "activation": f.activation("hidden_act", gated=True),
        "bias": bool(f("attention_bias")),
        "ffn_bias": False,
        "head_scale": f("logit_scale"),
    }
