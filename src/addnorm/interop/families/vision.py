"""Vision encoders: ViT, DeiT and ViT-MSN."""

from typing import Any

from addnorm.interop.config_reader import ConfigReader
from addnorm.interop.families.encoders import BACKBONE, CLASSIFIER_RULES
from addnorm.interop.family import Family, HeadVariant, parse_rules, register_families


def vit(f: ConfigReader) -> dict[str, Any]:
    """Read vit, deit and vit_msn; deit has a distillation token."""
    f.ignore("encoder_stride")
    dim, side, patch = f("hidden_size"), f("image_size"), f("patch_size")
    for name, value in (("image_size", side), ("patch_size", patch)):
        if not isinstance(value, int):
            f.reject(f"{name}={value!r} (only squares are supported)")
            side = patch = 1
    extra = int(f.has_tensor("embeddings.distillation_token"))
    if f.has_tensor("pooler.dense.weight"):
        f.require(pooler_output_size=dim)
        if f("pooler_act") not in ("tanh", "relu", "gelu"):
            f.reject(f"pooler_act={f('pooler_act')!r} (only tanh, relu and gelu are supported)")
    f.ignore("pooler_act", "pooler_output_size", "tie_word_embeddings")
    return {
        "image": side,
        "patch": patch,
        "channels": f("num_channels"),
        "class_tokens": 1 + extra,
        "dim": dim,
        "depth": f("num_hidden_layers"),
        "heads": f("num_attention_heads"),
        "ffn_dim": f("intermediate_size"),
        "norm": f"layer(eps={f('layer_norm_eps')!r})",
        "positions": f"learned(length={(side // patch) ** 2 + 1 + extra})",
        "activation": f.activation("hidden_act"),
        "bias": f("qkv_bias"),
        "out_bias": True,
        "ffn_bias": True,
        "dropout": f.dropout("hidden_dropout_prob"),
        "attention_dropout": f.dropout("attention_probs_dropout_prob"),
    }


def read_image_classes(f: ConfigReader) -> dict[str, Any]:
    """Read a classification head on the first token."""
    return {"classes": len(f("id2label"))}


VIT = parse_rules("""
    embeddings.cls_token -> embed.cls  (reshape)
    embeddings.distillation_token -> embed.more  (reshape)
    embeddings.position_embeddings -> encoder.positions.table  (reshape)
    embeddings.patch_embeddings.projection -> embed.project
    layers.{i}.attention.q_proj -> encoder.{i}.self.q_proj
    layers.{i}.attention.k_proj -> encoder.{i}.self.k_proj
    layers.{i}.attention.v_proj -> encoder.{i}.self.v_proj
    layers.{i}.attention.o_proj -> encoder.{i}.self.out_proj
    layers.{i}.layernorm_before -> encoder.{i}.self.norm
    layers.{i}.mlp.fc1 -> encoder.{i}.ffn.up_proj
    layers.{i}.mlp.fc2 -> encoder.{i}.ffn.down_proj
    layers.{i}.layernorm_after -> encoder.{i}.ffn.norm
    layernorm -> encoder.final_norm
    pooler.dense -> pooler
""")

register_families(
    *(
        Family(
            name=name,
            variants={
                f"{names}Model": BACKBONE,
                f"{names}ForImageClassification": HeadVariant(
                    kind="classifier", read=read_image_classes, head_rules=CLASSIFIER_RULES
                ),
            },
            read=vit,
            tensors=VIT,
        )
        for name, names in (("vit", "ViT"), ("deit", "DeiT"), ("vit_msn", "ViTMSN"))
    ),
)
