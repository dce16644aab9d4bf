"""Config readers of LLaMA and of the decoders derived from it."""

from typing import Any

from addnorm.interop.config_reader import ConfigReader
from addnorm.interop.families.common import read_tying

TABLE = "model.embed_tokens.weight"


def read_common(f: ConfigReader, norm: str, eps: str = "rms_norm_eps") -> dict[str, Any]:
    """Read the fields that all of them share.

    Args:
        f: reader of the config
        norm: call string of the norm with the placeholder `{eps!r}`
        eps: field with the epsilon of the norm
    """
    f.ignore("max_position_embeddings")
    heads, head_dim = f("num_attention_heads"), f("head_dim", None)
    has_own_head_dim = head_dim is not None and head_dim * heads != f("hidden_size")
    return read_tying(f, TABLE) | {
        "vocab": f("vocab_size"),
        "dim": f("hidden_size"),
        "depth": f("num_hidden_layers"),
        "heads": heads,
        "kv_heads": f("num_key_value_heads", None) or heads,
        "head_dim": head_dim if has_own_head_dim else None,
        "ffn_dim": f("intermediate_size"),
        "norm": norm.format(eps=f(eps)) if "{" in norm else norm,
        "bias": False,
        "attention_dropout": float(f("attention_dropout", 0.0)),
    }


def like_llama(f: ConfigReader, **overrides: Any) -> dict[str, Any]:
    """Read llama, with overrides for families that differ from it in some fields."""
    values = read_common(f, "rms(eps={eps!r})") | {
        "activation": f.activation("hidden_act", gated=True)
    }
    values |= {} if "positions" in overrides else {"positions": f.rotary()}
    values |= {"bias": bool(f("attention_bias", False)), "ffn_bias": bool(f("mlp_bias", False))}
    return values | overrides


def read_windows(f: ConfigReader) -> dict[str, Any]:
    """Read the windows of Qwen 2 and 3, which the list of layer types determines alone."""
    f.ignore("use_sliding_window", "max_window_layers")
    return {"window": f.windows("sliding_window", "layer_types")}


def mistral(f: ConfigReader) -> dict[str, Any]:
    """Read mistral: LLaMA with windows."""
    return like_llama(f, window=f.windows("sliding_window"))


def qwen2(f: ConfigReader) -> dict[str, Any]:
    """Read qwen2: biases on queries, keys and values only."""
    return like_llama(f, bias=True, out_bias=False) | read_windows(f)


def qwen3(f: ConfigReader) -> dict[str, Any]:
    """Read qwen3: a query-key norm in every head."""
    return like_llama(f, qk_norm=f"rms_head(eps={f('rms_norm_eps')!r})") | read_windows(f)


def ministral(f: ConfigReader) -> dict[str, Any]:
    """Read ministral: windows by layer type."""
    return like_llama(f, window=f.windows("sliding_window", "layer_types"))


def seed_oss(f: ConfigReader) -> dict[str, Any]:
    """Read seed_oss: LLaMA with a separate bias of the output projection."""
    out, dropout = bool(f("attention_out_bias")), f.dropout("residual_dropout")
    return like_llama(f, out_bias=out, dropout=dropout)


def ernie4_5(f: ConfigReader) -> dict[str, Any]:
    """Read ernie4_5: interleaved rotary positions."""
    bias = bool(f("use_bias"))
    values = read_common(f, "rms(eps={eps!r})") | {"bias": bias, "ffn_bias": bias}
    values["activation"] = f.activation("hidden_act", gated=True)
    return values | {"positions": f.rotary(layout="interleaved")}


def exaone4(f: ConfigReader) -> dict[str, Any]:
    """Read exaone4 without windows; with them, some layers have no positions."""
    f.require(sliding_window=None)
    f.ignore("sliding_window_pattern", "layer_types")
    norm = f"rms_head(eps={f('rms_norm_eps')!r})"
    return like_llama(f, wiring="res_post", qk_norm=norm)


def smollm3(f: ConfigReader) -> dict[str, Any]:
    """Read smollm3 with rotary positions in all layers."""
    f.ignore("no_rope_layer_interval")
    if not all(f("no_rope_layers", None) or [1]):
        f.reject(f"no_rope_layers={f('no_rope_layers')!r} (layers without positions)")
    return like_llama(f) | read_windows(f)


def granite(f: ConfigReader) -> dict[str, Any]:
    """Read granite: scaled embeddings, attention, logits and branches."""
    multiplier = float(f("residual_multiplier"))
    wiring = "pre_ln" if multiplier == 1 else f"scaled(r={multiplier!r})"
    return like_llama(
        f,
        wiring=wiring,
        attention_scale=f("attention_multiplier"),
        embed_scale=f("embedding_multiplier"),
        head_scale=1.0 / f("logits_scaling"),
    )


def helium(f: ConfigReader) -> dict[str, Any]:
    """Read helium: interleaved rotary positions."""
    return like_llama(f, positions=f.rotary(layout="interleaved"), out_bias=False)


def glm(f: ConfigReader) -> dict[str, Any]:
    """Read glm and glm4: interleaved rotary positions on half of each head."""
    positions = f.rotary(layout="interleaved", partial=True)
    return like_llama(f, positions=positions, out_bias=False)


def glm4(f: ConfigReader) -> dict[str, Any]:
    """Read glm4: norms before and after each sub-layer."""
    return glm(f) | {"wiring": "sandwich"}


def gemma(f: ConfigReader, **overrides: Any) -> dict[str, Any]:
    """Read gemma: gains stored as an offset from 1, embeddings scaled by sqrt(dim)."""
    if f("use_bidirectional_attention", None):
        f.reject("use_bidirectional_attention=True (only causal attention is supported)")
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
    """Read gemma2: norms before and after each sub-layer, soft-capped logits, windows."""
    return gemma(
        f,
        wiring="sandwich",
        attention_scale=f("query_pre_attn_scalar") ** -0.5,
        cap=f("attn_logit_softcapping"),
        head_cap=f("final_logit_softcapping"),
        window=f.windows("sliding_window", "layer_types"),
    )


def gemma3(f: ConfigReader) -> dict[str, Any]:
    """Read gemma3_text: gemma2 with query-key norms and rotary positions by layer type."""
    norm = f"rms_head(eps={f('rms_norm_eps')!r}, gain=one_plus)"
    return gemma2(f) | {"qk_norm": norm}


def vaultgemma(f: ConfigReader) -> dict[str, Any]:
    """Read vaultgemma: gemma2 with Pre-LN."""
    return gemma2(f) | {"wiring": "pre_ln"}


def olmo(f: ConfigReader) -> dict[str, Any]:
    """Read olmo: LayerNorm without gain and bias."""
    f.require(clip_qkv=None)
    values = read_common(f, "layer(affine=False)")
    values |= {"positions": f.rotary(), "activation": f.activation("hidden_act", gated=True)}
    return values | {"bias": bool(f("attention_bias")), "ffn_bias": False}


def olmo2(f: ConfigReader) -> dict[str, Any]:
    """Read olmo2: norms on the branches, and query-key norms over all heads."""
    return like_llama(f, wiring="res_post", qk_norm=f"rms(eps={f('rms_norm_eps')!r})")


def olmo3(f: ConfigReader) -> dict[str, Any]:
    """Read olmo3: olmo2 with windows."""
    return olmo2(f) | {"window": f.windows("sliding_window", "layer_types")}


def phi(f: ConfigReader) -> dict[str, Any]:
    """Read phi: parallel sub-layers, biases everywhere."""
    f.require(qk_layernorm=False)
    return read_common(f, "layer(eps={eps!r})", "layer_norm_eps") | {
        "wiring": "parallel",
        "positions": f.rotary(partial=True),
        "activation": f.activation("hidden_act"),
        "bias": True,
        "dropout": f.dropout("resid_pdrop", "embd_pdrop"),
    }


def phi3(f: ConfigReader) -> dict[str, Any]:
    """Read phi3: LLaMA with partial rotary positions, windows and dropout."""
    f.ignore("original_max_position_embeddings")
    dropout, positions = f.dropout("resid_pdrop", "embd_pdrop"), f.rotary(partial=True)
    window = f.windows("sliding_window")
    return like_llama(f, positions=positions, window=window, dropout=dropout)


def stablelm(f: ConfigReader) -> dict[str, Any]:
    """Read stablelm: LLaMA with LayerNorm, optionally with parallel sub-layers."""
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
    """Read starcoder2: LayerNorm, a plain feed-forward, windows."""
    return read_common(f, "layer(eps={eps!r})", "norm_epsilon") | {
        "positions": f.rotary(),
        "activation": f.activation("hidden_act"),
        "window": f.windows("sliding_window"),
        "bias": bool(f("use_bias")),
        "dropout": f.dropout("residual_dropout", "embedding_dropout"),
    }


def cohere(f: ConfigReader) -> dict[str, Any]:
    """Read cohere: parallel sub-layers, LayerNorm without bias, scaled logits."""
    f.require(use_qk_norm=False)
    return read_common(f, "layer(eps={eps!r}, bias=False)", "layer_norm_eps") | {
        "wiring": "parallel",
        "positions": f.rotary(layout="interleaved"),
        "activation": f.activation("hidden_act", gated=True),
        "bias": bool(f("attention_bias")),
        "ffn_bias": False,
        "head_scale": f("logit_scale"),
    }
