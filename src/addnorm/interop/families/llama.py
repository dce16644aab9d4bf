"""LLaMA and the decoders derived from it, one row of a table each."""

from dataclasses import dataclass

from addnorm.interop.families import llama_configs as configs
from addnorm.interop.families.common import causal_variants
from addnorm.interop.family import Family, Reader, parse_rules, register_families

TENSORS = """
    embed_tokens.weight -> embed.table
    layers.{i}.self_attn.q_proj -> decoder.{i}.self.q_proj
    layers.{i}.self_attn.k_proj -> decoder.{i}.self.k_proj
    layers.{i}.self_attn.v_proj -> decoder.{i}.self.v_proj
    layers.{i}.self_attn.o_proj -> decoder.{i}.self.out_proj
    layers.{i}.self_attn.q_norm -> decoder.{i}.self.qk_norm.query_norm
    layers.{i}.self_attn.k_norm -> decoder.{i}.self.qk_norm.key_norm
    layers.{i}.mlp.gate_proj -> decoder.{i}.ffn.gate_proj
    layers.{i}.mlp.up_proj -> decoder.{i}.ffn.up_proj
    layers.{i}.mlp.down_proj -> decoder.{i}.ffn.down_proj
    norm -> decoder.final_norm
"""
FUSED = """
    layers.{i}.self_attn.qkv_proj -> decoder.{i}.self.q_proj, decoder.{i}.self.k_proj, \
decoder.{i}.self.v_proj  (stack)
    layers.{i}.mlp.gate_up_proj -> decoder.{i}.ffn.gate_proj, decoder.{i}.ffn.up_proj  (stack)
"""
PLAIN_FFN = """
    layers.{i}.self_attn.dense -> decoder.{i}.self.out_proj
    layers.{i}.mlp.fc1 -> decoder.{i}.ffn.up_proj
    layers.{i}.mlp.fc2 -> decoder.{i}.ffn.down_proj
    layers.{i}.mlp.c_fc -> decoder.{i}.ffn.up_proj
    layers.{i}.mlp.c_proj -> decoder.{i}.ffn.down_proj
    final_layernorm -> decoder.final_norm
"""
# Beware of the names: `post_attention_layernorm` normalizes the input of the feed-forward in LLaMA,
# but the output of the attention in Gemma 2 and OLMo 2.
PRE_NORMS = """
    layers.{i}.input_layernorm -> decoder.{i}.self.norm
    layers.{i}.post_attention_layernorm -> decoder.{i}.ffn.norm
"""
SANDWICH_NORMS = """
    layers.{i}.input_layernorm -> decoder.{i}.self.norm
    layers.{i}.post_attention_layernorm -> decoder.{i}.self.outer_norm
    layers.{i}.pre_feedforward_layernorm -> decoder.{i}.ffn.norm
    layers.{i}.post_feedforward_layernorm -> decoder.{i}.ffn.outer_norm
"""
GLM_SANDWICH_NORMS = (
    PRE_NORMS
    + """
    layers.{i}.post_self_attn_layernorm -> decoder.{i}.self.outer_norm
    layers.{i}.post_mlp_layernorm -> decoder.{i}.ffn.outer_norm
"""
)
OUTPUT_NORMS = """
    layers.{i}.post_attention_layernorm -> decoder.{i}.self.norm
    layers.{i}.post_feedforward_layernorm -> decoder.{i}.ffn.norm
"""


@dataclass(frozen=True)
class _Row:
    name: str
    class_prefix: str
    read: Reader
    tensors: str = PRE_NORMS
    backbone: str = ""
    restarts_cache: bool = False


_ROWS = (
    _Row("llama", "Llama", configs.like_llama),
    _Row("mistral", "Mistral", configs.mistral),
    _Row("qwen2", "Qwen2", configs.qwen2),
    _Row("qwen3", "Qwen3", configs.qwen3),
    _Row("ministral", "Ministral", configs.ministral),
    _Row("seed_oss", "SeedOss", configs.seed_oss),
    _Row("ernie4_5", "Ernie4_5", configs.ernie4_5),
    _Row("exaone4", "Exaone4", configs.exaone4, OUTPUT_NORMS),
    _Row("smollm3", "SmolLM3", configs.smollm3),
    _Row("granite", "Granite", configs.granite),
    _Row("helium", "Helium", configs.helium),
    _Row("glm", "Glm", configs.glm, PRE_NORMS + FUSED),
    _Row("glm4", "Glm4", configs.glm4, GLM_SANDWICH_NORMS + FUSED),
    _Row("gemma", "Gemma", configs.gemma),
    _Row("gemma2", "Gemma2", configs.gemma2, SANDWICH_NORMS),
    _Row("gemma3_text", "Gemma3", configs.gemma3, SANDWICH_NORMS, "Gemma3TextModel"),
    _Row("vaultgemma", "VaultGemma", configs.vaultgemma, SANDWICH_NORMS),
    _Row("olmo", "Olmo", configs.olmo),
    _Row("olmo2", "Olmo2", configs.olmo2, OUTPUT_NORMS),
    _Row("olmo3", "Olmo3", configs.olmo3, OUTPUT_NORMS),
    _Row("phi", "Phi", configs.phi, PRE_NORMS + PLAIN_FFN),
    _Row("phi3", "Phi3", configs.phi3, PRE_NORMS + FUSED, restarts_cache=True),
    _Row("stablelm", "StableLm", configs.stablelm),
    _Row("starcoder2", "Starcoder2", configs.starcoder2, PRE_NORMS + PLAIN_FFN),
    _Row("cohere", "Cohere", configs.cohere),
)

register_families(
    *(
        Family(
            name=row.name,
            variants=causal_variants(
                row.backbone or f"{row.class_prefix}Model",
                f"{row.class_prefix}ForCausalLM",
                restarts_cache=row.restarts_cache,
            ),
            read=row.read,
            tensors=parse_rules(TENSORS + row.tensors),
        )
        for row in _ROWS
    )
)
