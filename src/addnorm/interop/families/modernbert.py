"""ModernBERT: Pre-LN without the first norm, gated feed-forward, rotary positions, windows."""

from dataclasses import replace
from typing import Any

from addnorm.interop.config_reader import ConfigReader, find_cycle
from addnorm.interop.families.encoders import BACKBONE
from addnorm.interop.family import Family, HeadVariant, parse_rules, register_families


def modernbert(f: ConfigReader) -> dict[str, Any]:
    """Read the backbone."""
    f.ignore("tie_word_embeddings", "classifier_pooling", "classifier_dropout", "classifier_bias")
    f.ignore(
        "classifier_activation", "decoder_bias", "sparse_prediction", "sparse_pred_ignore_index"
    )
    f.ignore("deterministic_flash_attn", "reference_compile", "repad_logits_with_grad")
    f.ignore("max_position_embeddings", "initializer_cutoff_factor", "cls_token_id")
    f.ignore("global_attn_every_n_layers", "norm_bias", "position_embedding_type")
    norm = read_norm(f)
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


def read_norm(f: ConfigReader) -> str:
    """Return the call string of all norms."""
    return f"layer(eps={f('norm_eps')!r}{'' if f('norm_bias') else ', bias=False'})"


def masked_lm(f: ConfigReader) -> dict[str, Any]:
    """Read the head of a masked language model, whose activation is not that of the layers."""
    return {
        "tied": f.is_tied("decoder.weight", "model.embeddings.tok_embeddings.weight"),
        "head_bias": bool(f("decoder_bias")),
        "head_layer": True,
        "head_activation": f.activation("classifier_activation"),
    }


def classifier(f: ConfigReader) -> dict[str, Any]:
    """Read the head of a classifier: linear layer, activation and norm before the classes."""
    activation = f.activation("classifier_activation")
    if activation not in ("relu", "gelu"):
        f.reject(f"classifier_activation={activation!r} (the pooler has tanh, relu and gelu)")
    return {
        "classes": len(f("id2label")),
        "pooling": f("classifier_pooling"),
        "pooler": True,
        "pooler_activation": activation,
        "pooler_norm": read_norm(f),
    }


def token_classifier(f: ConfigReader) -> dict[str, Any]:
    """Read the head of a classifier of every token."""
    return classifier(f) | {"pooling": "none"}


CLASSIFIER = HeadVariant(
    kind="classifier",
    read=classifier,
    head_rules=parse_rules("head.dense -> pooler\nhead.norm -> pooler_norm\nclassifier -> head"),
    absent=("pooler.bias",),
)

register_families(
    Family(
        name="modernbert",
        variants={
            "ModernBertModel": BACKBONE,
            "ModernBertForMaskedLM": HeadVariant(
                kind="masked_lm",
                read=masked_lm,
                head_rules=parse_rules("""
                    head.dense -> head_matrix
                    head.norm -> head_norm
                    decoder.weight -> head.table
                    decoder.weight -> embed.table
                    decoder.bias -> head.bias
                """),
                absent=("head_matrix.bias",),
            ),
            "ModernBertForSequenceClassification": CLASSIFIER,
            "ModernBertForTokenClassification": replace(CLASSIFIER, read=token_classifier),
        },
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
