"""GPT, GPT-2, GPT-BigCode, GPT-J and GPT-Neo."""

from typing import Any

from addnorm.interop.config_reader import ConfigReader
from addnorm.interop.families.common import QKV, causal_variants, read_tying
from addnorm.interop.family import Family, parse_rules, register_families


def gpt(f: ConfigReader, *, wiring: str, activation: str) -> dict[str, Any]:
    """Read the fields that GPT, GPT-2 and GPT-J share.

    Args:
        f: reader of the config
        wiring: call string of the wiring
        activation: field with the name of the activation
    """
    f.ignore("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels")
    f.ignore("summary_first_dropout", "reorder_and_upcast_attn")
    f.require(add_cross_attention=False, scale_attn_by_inverse_layer_idx=False)
    dim = f("n_embd")
    return {
        "vocab": f("vocab_size"),
        "dim": dim,
        "depth": f("n_layer"),
        "heads": f("n_head"),
        "ffn_dim": f("n_inner", None) or 4 * dim,
        "wiring": wiring,
        "norm": f"layer(eps={f('layer_norm_epsilon')!r})",
        "positions": f"learned(length={f('n_positions')})",
        "activation": f.activation(activation),
        "dropout": f.dropout("resid_pdrop", "embd_pdrop"),
        "attention_dropout": f.dropout("attn_pdrop"),
    }


def gpt1(f: ConfigReader) -> dict[str, Any]:
    """Read openai-gpt, whose "gelu" is the tanh approximation."""
    values = gpt(f, wiring="post_ln", activation="afn")
    activation = {"gelu": "gelu_tanh"}.get(f("afn"), values["activation"])
    return values | {"activation": activation} | read_tying(f, "transformer.tokens_embed.weight")


def gpt2(f: ConfigReader) -> dict[str, Any]:
    """Read gpt2: Pre-LN with GPT-2's initialization; logits may be unscaled."""
    scale = None if f("scale_attn_weights") else 1.0
    values = gpt(f, wiring="pre_ln(init=gpt2)", activation="activation_function")
    return values | {"attention_scale": scale} | read_tying(f, "transformer.wte.weight")


def gpt_bigcode(f: ConfigReader) -> dict[str, Any]:
    """Read gpt_bigcode: GPT-2 with multi-query attention."""
    f.ignore("attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "num_key_value_heads")
    values = gpt2(f) | {"wiring": "pre_ln"}
    return values | {"kv_heads": 1 if f("multi_query") else values["heads"]}


def gptj(f: ConfigReader) -> dict[str, Any]:
    """Read gptj: parallel sub-layers and interleaved rotary positions on a part of each head."""
    values = gpt(f, wiring="parallel", activation="activation_function")
    head_dim = values["dim"] // values["heads"]
    share = (f("rotary_dim") or head_dim) / head_dim
    return (
        values
        | read_tying(f, "transformer.wte.weight")
        | {
            "bias": False,
            "ffn_bias": True,
            "positions": f"rotary(share={share!r}, layout=interleaved)",
        }
    )


def gpt_neo(f: ConfigReader) -> dict[str, Any]:
    """Read gpt_neo: unscaled attention with windows in every other layer."""
    f.ignore("classifier_dropout", "attention_types")
    dim = f("hidden_size")
    return read_tying(f, "transformer.wte.weight") | {
        "vocab": f("vocab_size"),
        "dim": dim,
        "depth": f("num_layers"),
        "heads": f("num_heads"),
        "ffn_dim": f("intermediate_size") or 4 * dim,
        "norm": f"layer(eps={f('layer_norm_epsilon')!r})",
        "positions": f"learned(length={f('max_position_embeddings')})",
        "activation": f.activation("activation_function"),
        "window": f.windows("window_size", "attention_layers"),
        "attention_scale": 1.0,
        "bias": False,
        "out_bias": True,
        "ffn_bias": True,
        "dropout": f.dropout("resid_dropout", "embed_dropout"),
        "attention_dropout": f.dropout("attention_dropout"),
    }


WTE = """
    wte.weight -> embed.table
    wpe.weight -> decoder.positions.table
"""
CONV1D = f"""
    h.{{i}}.ln_1 -> decoder.{{i}}.self.norm
    h.{{i}}.attn.c_attn -> {QKV}  (stack_transpose)
    h.{{i}}.attn.c_proj -> decoder.{{i}}.self.out_proj  (transpose)
    h.{{i}}.ln_2 -> decoder.{{i}}.ffn.norm
    h.{{i}}.mlp.c_fc -> decoder.{{i}}.ffn.up_proj  (transpose)
    h.{{i}}.mlp.c_proj -> decoder.{{i}}.ffn.down_proj  (transpose)
    ln_f -> decoder.final_norm
"""

register_families(
    Family(
        name="openai-gpt",
        variants=causal_variants("OpenAIGPTModel", "OpenAIGPTLMHeadModel"),
        read=gpt1,
        tensors=parse_rules(
            "tokens_embed.weight -> embed.table\n"
            "positions_embed.weight -> decoder.positions.table" + CONV1D
        ),
    ),
    Family(
        name="gpt2",
        variants=causal_variants("GPT2Model", "GPT2LMHeadModel"),
        read=gpt2,
        tensors=parse_rules(WTE + CONV1D),
    ),
    Family(
        name="gpt_bigcode",
        variants=causal_variants("GPTBigCodeModel", "GPTBigCodeForCausalLM"),
        read=gpt_bigcode,
        tensors=parse_rules(
            WTE + CONV1D.replace("(transpose)", "").replace("stack_transpose", "by_head")
        ),
    ),
    Family(
        name="gptj",
        variants=causal_variants("GPTJModel", "GPTJForCausalLM"),
        read=gptj,
        tensors=parse_rules(
            WTE
            + """
            h.{i}.ln_1 -> decoder.{i}.self.norm
            h.{i}.attn.q_proj -> decoder.{i}.self.q_proj
            h.{i}.attn.k_proj -> decoder.{i}.self.k_proj
            h.{i}.attn.v_proj -> decoder.{i}.self.v_proj
            h.{i}.attn.out_proj -> decoder.{i}.self.out_proj
            h.{i}.mlp.fc_in -> decoder.{i}.ffn.up_proj
            h.{i}.mlp.fc_out -> decoder.{i}.ffn.down_proj
            ln_f -> decoder.final_norm
            """
        ),
    ),
    Family(
        name="gpt_neo",
        variants=causal_variants("GPTNeoModel", "GPTNeoForCausalLM"),
        read=gpt_neo,
        tensors=parse_rules(
            WTE
            + """
            h.{i}.ln_1 -> decoder.{i}.self.norm
            h.{i}.attn.attention.q_proj -> decoder.{i}.self.q_proj
            h.{i}.attn.attention.k_proj -> decoder.{i}.self.k_proj
            h.{i}.attn.attention.v_proj -> decoder.{i}.self.v_proj
            h.{i}.attn.attention.out_proj -> decoder.{i}.self.out_proj
            h.{i}.ln_2 -> decoder.{i}.ffn.norm
            h.{i}.mlp.c_fc -> decoder.{i}.ffn.up_proj
            h.{i}.mlp.c_proj -> decoder.{i}.ffn.down_proj
            ln_f -> decoder.final_norm
            """
        ),
    ),
)
