"""Decoders whose feed-forward is a mixture of experts."""

from typing import Any

from addnorm.interop.config_reader import ConfigReader
from addnorm.interop.families import llama
from addnorm.interop.families.common import causal_variants
from addnorm.interop.families.llama_configs import granite, like_llama, read_windows
from addnorm.interop.family import Family, parse_rules, register_families

TENSORS = """
    layers.{i}.mlp.gate -> decoder.{i}.ffn.router
    layers.{i}.mlp.experts.gate_up_proj -> decoder.{i}.ffn.experts.{e}.gate_proj.weight, \
decoder.{i}.ffn.experts.{e}.up_proj.weight  (experts)
    layers.{i}.mlp.experts.down_proj -> decoder.{i}.ffn.experts.{e}.down_proj.weight  (experts)
    layers.{i}.block_sparse_moe.router -> decoder.{i}.ffn.router
    layers.{i}.block_sparse_moe.experts.gate_up_proj -> \
decoder.{i}.ffn.experts.{e}.gate_proj.weight, decoder.{i}.ffn.experts.{e}.up_proj.weight  (experts)
    layers.{i}.block_sparse_moe.experts.down_proj -> \
decoder.{i}.ffn.experts.{e}.down_proj.weight  (experts)
    layers.{i}.mlp.shared_expert.gate_proj -> decoder.{i}.ffn.shared_expert.gate_proj
    layers.{i}.mlp.shared_expert.up_proj -> decoder.{i}.ffn.shared_expert.up_proj
    layers.{i}.mlp.shared_expert.down_proj -> decoder.{i}.ffn.shared_expert.down_proj
    layers.{i}.mlp.shared_expert_gate -> decoder.{i}.ffn.shared_gate
"""


def read_experts(f: ConfigReader, count: str = "num_experts") -> dict[str, Any]:
    """Read the number of experts, how many of them a token uses, and how they are weighted.

    The loss that balances experts is added by transformers on request only; it changes no output.
    """
    f.ignore("output_router_logits", "router_aux_loss_coef")
    return {
        "experts": f(count),
        "experts_per_token": f("num_experts_per_tok"),
        "normalize_routes": bool(f("norm_topk_prob", True)),
    }


def read_expert_width(f: ConfigReader) -> dict[str, Any]:
    """Read the width of experts; reject Qwen's models with feed-forwards without experts."""
    f.ignore("intermediate_size")  # of these
    f.require(mlp_only_layers=[], decoder_sparse_step=1)
    return {"ffn_dim": f("moe_intermediate_size")}


def mixtral(f: ConfigReader) -> dict[str, Any]:
    """Read mixtral: LLaMA with experts and windows."""
    f.require(router_jitter_noise=0.0)
    window = f.windows("sliding_window")
    return like_llama(f, window=window) | read_experts(f, "num_local_experts")


def granitemoe(f: ConfigReader) -> dict[str, Any]:
    """Read granitemoe: granite with experts.

    A softmax over the largest logits is a softmax over all of them, divided by its sum there.
    """
    return granite(f) | read_experts(f, "num_local_experts")


def olmoe(f: ConfigReader) -> dict[str, Any]:
    """Read olmoe: query-key norms over all heads."""
    f.require(clip_qkv=None)
    norm = f"rms(eps={f('rms_norm_eps')!r})"
    return like_llama(f, qk_norm=norm) | read_experts(f)


def qwen2_moe(f: ConfigReader) -> dict[str, Any]:
    """Read qwen2_moe: biases on queries, keys and values, and a shared expert."""
    shared = {"shared_ffn_dim": f("shared_expert_intermediate_size")}
    values = like_llama(f, bias=bool(f("qkv_bias")), out_bias=False) | read_windows(f)
    return values | read_experts(f) | read_expert_width(f) | shared


def qwen3_moe(f: ConfigReader) -> dict[str, Any]:
    """Read qwen3_moe: a query-key norm in every head."""
    norm = f"rms_head(eps={f('rms_norm_eps')!r})"
    values = like_llama(f, qk_norm=norm) | read_windows(f)
    count = "num_experts" if "num_experts" in f.values else "num_local_experts"
    return values | read_experts(f, count) | read_expert_width(f)


register_families(
    *(
        Family(
            name=name,
            variants=causal_variants(f"{prefix}Model", f"{prefix}ForCausalLM"),
            read=read,
            tensors=parse_rules(TENSORS + llama.TENSORS + llama.PRE_NORMS),
        )
        for name, prefix, read in (
            ("mixtral", "Mixtral", mixtral),
            ("granitemoe", "GraniteMoe", granitemoe),
            ("olmoe", "Olmoe", olmoe),
            ("qwen2_moe", "Qwen2Moe", qwen2_moe),
            ("qwen3_moe", "Qwen3Moe", qwen3_moe),
        )
    )
)
