"""Decoders with squared ReLU, xIELU, gated attention or norms without gain."""

from typing import Any

from addnorm.interop.config_reader import ConfigReader
from addnorm.interop.families import llama
from addnorm.interop.families.common import causal_variants
from addnorm.interop.families.llama_configs import like_llama, read_common
from addnorm.interop.family import REFUSED, Family, parse_rules, register_families


def arcee(f: ConfigReader) -> dict[str, Any]:
    """Read arcee: LLaMA with a squared ReLU in place of the gate."""
    values = read_common(f, "rms(eps={eps!r})") | {"activation": f.activation("hidden_act")}
    bias = {"bias": bool(f("attention_bias")), "ffn_bias": bool(f("mlp_bias"))}
    return values | bias | {"positions": f.rotary()}


def nemotron(f: ConfigReader) -> dict[str, Any]:
    """Read nemotron: LayerNorm with gain 1 + weight, partial rotary positions, squared ReLU."""
    f.ignore("partial_rotary_factor")  # also among the rotary parameters
    values = read_common(f, "layer(eps={eps!r}, gain=one_plus)", "norm_eps")
    bias = {"bias": bool(f("attention_bias")), "ffn_bias": bool(f("mlp_bias"))}
    return (
        values
        | bias
        | {
            "activation": f.activation("hidden_act"),
            "positions": f.rotary(partial=True),
        }
    )


def apertus(f: ConfigReader) -> dict[str, Any]:
    """Read apertus: xIELU and a query-key norm in every head."""
    values = read_common(f, "rms(eps={eps!r})")
    return values | {
        "activation": f.activation("hidden_act"),
        "positions": f.rotary(),
        "qk_norm": f"rms_head(eps={f('rms_norm_eps')!r})",
        "bias": bool(f("attention_bias")),
        "ffn_bias": False,
    }


def nanochat(f: ConfigReader) -> dict[str, Any]:
    """Read nanochat: no gains, a norm of the embedding, squared ReLU, capped logits."""
    norm = f"rms(eps={f('rms_norm_eps')!r}, affine=False)"
    return read_common(f, norm) | {
        "embed_norm": norm,
        "activation": f.activation("hidden_act"),
        "positions": f.rotary(),
        "qk_norm": f"rms_head(eps={f('rms_norm_eps')!r}, gain=none)",
        "bias": bool(f("attention_bias")),
        "ffn_bias": False,
        "head_cap": f("final_logit_softcapping"),
    }


def qwen3_next(f: ConfigReader) -> dict[str, Any]:
    """Read qwen3_next without linear attention and experts: gated attention, gains 1 + weight."""
    depth = f("num_hidden_layers")
    f.ignore("partial_rotary_factor")
    f.ignore(*(name for name in f.values if name.startswith("linear_")))
    f.ignore("moe_intermediate_size", "shared_expert_intermediate_size", "num_experts_per_tok")
    f.ignore("norm_topk_prob", "output_router_logits", "router_aux_loss_coef")
    if set(f("layer_types")) != {"full_attention"}:
        f.reject("layer_types with 'linear_attention' (gated delta networks are not supported)")
    dense, step = set(f("mlp_only_layers") or ()), f("decoder_sparse_step")
    sparse = [n for n in range(depth) if n not in dense and (n + 1) % step == 0]
    if f("num_experts") and sparse:
        f.reject(
            f"num_experts={f('num_experts')} (experts beside gated attention are not supported)"
        )
    f.require(attention_bias=False)
    return like_llama(
        f,
        norm=f"rms(eps={f('rms_norm_eps')!r}, gain=one_plus)",
        qk_norm=f"rms_head(eps={f('rms_norm_eps')!r}, gain=one_plus)",
        positions=f.rotary(partial=True),
        gate="element",
        bias=False,
    )


APERTUS = """
    layers.{i}.attention_layernorm -> decoder.{i}.self.norm
    layers.{i}.feedforward_layernorm -> decoder.{i}.ffn.norm
    layers.{i}.mlp.act_fn -> decoder.{i}.ffn.act
"""
NANOCHAT = """
    embed_tokens.weight -> embed.table
    layers.{i}.self_attn.q_proj -> decoder.{i}.self.q_proj  (swap_halves)
    layers.{i}.self_attn.k_proj -> decoder.{i}.self.k_proj  (swap_halves)
    layers.{i}.self_attn.v_proj -> decoder.{i}.self.v_proj
    layers.{i}.self_attn.o_proj -> decoder.{i}.self.out_proj
    layers.{i}.mlp.fc1 -> decoder.{i}.ffn.up_proj
    layers.{i}.mlp.fc2 -> decoder.{i}.ffn.down_proj
"""
QWEN3_NEXT = """
    layers.{i}.self_attn.q_proj -> decoder.{i}.self.q_proj, decoder.{i}.self.output_gate.proj  \
(with_gate)
"""
LLAMA = llama.TENSORS + llama.PRE_NORMS
UNGATED = [line for line in LLAMA.splitlines() if "self_attn.q_proj" not in line]


register_families(
    Family(
        name="arcee",
        variants=causal_variants("ArceeModel", "ArceeForCausalLM"),
        read=arcee,
        tensors=parse_rules(LLAMA),
    ),
    Family(
        name="nemotron",
        variants=causal_variants("NemotronModel", "NemotronForCausalLM"),
        read=nemotron,
        tensors=parse_rules(LLAMA),
    ),
    Family(
        name="apertus",
        variants=causal_variants("ApertusModel", "ApertusForCausalLM"),
        read=apertus,
        tensors=parse_rules(llama.TENSORS + APERTUS),
    ),
    Family(
        name="nanochat",
        variants=causal_variants("NanoChatModel", "NanoChatForCausalLM"),
        read=nanochat,
        tensors=parse_rules(NANOCHAT),
    ),
    Family(
        name="qwen3_next",
        variants=causal_variants("Qwen3NextModel", "Qwen3NextForCausalLM"),
        read=qwen3_next,
        tensors=parse_rules("\n".join(UNGATED) + QWEN3_NEXT),
    ),
)

REFUSED["gemma3n_text"] = (
    "AltUp and per-layer embeddings are not supported; its augmented skip is laurel(form=gemma3n)"
)
REFUSED["qwen3_5_text"] = "gated delta networks are not supported"
REFUSED["nemotron_h"] = "state space layers are not supported"
