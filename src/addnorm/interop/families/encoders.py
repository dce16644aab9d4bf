"""Text encoders: BERT, RoBERTa, ELECTRA, DistilBERT and families derived from them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from addnorm.interop.config_reader import ConfigReader
from addnorm.interop.family import (
    Family,
    HeadVariant,
    PositionNumbering,
    Reader,
    WeightRule,
    parse_rules,
    register_families,
)


def bert(f: ConfigReader) -> dict[str, Any]:
    """Read bert, roberta, electra and others with the same fields."""
    f.require(is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    f.ignore("classifier_dropout", "summary_type", "summary_use_proj", "summary_activation")
    f.ignore("summary_last_dropout")
    norm = f"layer(eps={f('layer_norm_eps')!r})"
    return {
        "vocab": f("vocab_size"),
        "dim": f("hidden_size"),
        "depth": f("num_hidden_layers"),
        "heads": f("num_attention_heads"),
        "ffn_dim": f("intermediate_size"),
        "wiring": "post_ln",
        "norm": norm,
        "embed_norm": norm,
        "types": f("type_vocab_size", 0),
        "positions": f"learned(length={f('max_position_embeddings')})",
        "activation": f.activation("hidden_act"),
        "dropout": f.dropout("hidden_dropout_prob"),
        "attention_dropout": f.dropout("attention_probs_dropout_prob"),
    }


def roberta_prelayernorm(f: ConfigReader) -> dict[str, Any]:
    """Read roberta-prelayernorm: BERT with Pre-LN."""
    return bert(f) | {"wiring": "pre_ln"}


def megatron(f: ConfigReader) -> dict[str, Any]:
    """Read megatron-bert: BERT with Pre-LN and without a norm on the embedding."""
    return bert(f) | {"wiring": "pre_ln", "embed_norm": "none"}


def ernie(f: ConfigReader) -> dict[str, Any]:
    """Read ernie without task embeddings."""
    f.require(use_task_id=False)
    f.ignore("task_type_vocab_size")
    return bert(f)


def electra(f: ConfigReader) -> dict[str, Any]:
    """Read electra: BERT, with a projection of the embedding if it has another width."""
    width = f("embedding_size")
    return bert(f) | {"embed_dim": None if width == f("hidden_size") else width}


def distilbert(f: ConfigReader) -> dict[str, Any]:
    """Read distilbert: BERT without segments, with field names of its own."""
    f.ignore("qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds")
    return {
        "vocab": f("vocab_size"),
        "dim": f("dim"),
        "depth": f("n_layers"),
        "heads": f("n_heads"),
        "ffn_dim": f("hidden_dim"),
        "wiring": "post_ln",
        "norm": "layer(eps=1e-12)",
        "embed_norm": "layer(eps=1e-12)",
        "positions": f"learned(length={f('max_position_embeddings')})",
        "activation": f.activation("activation"),
        "dropout": f.dropout("dropout"),
        "attention_dropout": f.dropout("attention_dropout"),
    }


def mpnet(f: ConfigReader) -> dict[str, Any]:
    """Read mpnet: BERT without segments, with a relative bias beside the learned positions."""
    # The class computes 32 buckets, whatever its config says.
    f.require(relative_attention_num_buckets=32)
    return bert(f) | {"types": 0, "positions": f"learned_t5(length={f('max_position_embeddings')})"}


def masked_lm_variant(table: str, head: str, *, activation: str | None = None) -> HeadVariant:
    """Return the variant of a masked language model.

    Args:
        table: name of the embedding weight
        head: name of the output projection
        activation: fixed activation of the head; None if it is the model's
    """

    def read(f: ConfigReader) -> dict[str, Any]:
        if activation is not None and f.activation("hidden_act") != activation:
            f.reject(f"hidden_act={f('hidden_act')!r} (its head always uses {activation})")
        return {"tied": f.is_tied(f"{head}.weight", table), "head_bias": True, "head_layer": True}

    return HeadVariant(kind="masked_lm", read=read)


def with_head_rules(variant: HeadVariant, text: str) -> HeadVariant:
    """Return a copy of a variant with the given head rules."""
    return replace(variant, head_rules=parse_rules(text))


def read_backbone(f: ConfigReader) -> dict[str, Any]:
    """Read a backbone without a head, with or without a pooler."""
    f.ignore("tie_word_embeddings")
    pooler = f.has_tensor("pooler.dense.weight")
    activation = f("pooler_act", "tanh") if pooler else "tanh"
    return {"pooler": pooler, "pooler_activation": activation}


def read_classes(f: ConfigReader, activation: str = "tanh") -> dict[str, Any]:
    """Read a classification head on a pooler with an activation."""
    f.ignore("tie_word_embeddings")
    classes = len(f("id2label"))
    return {"pooler": True, "pooler_activation": activation, "classes": classes}


def read_token_classes(f: ConfigReader) -> dict[str, Any]:
    """Read a classification head on every token."""
    f.ignore("tie_word_embeddings")
    return {"pooling": "none", "classes": len(f("id2label"))}


BACKBONE = HeadVariant(
    kind="classifier", output_kind="hidden", without_prefix=True, read=read_backbone
)
BERT = parse_rules("""
    embeddings.word_embeddings.weight -> embed.table
    embeddings.token_type_embeddings.weight -> embed.types
    embeddings.position_embeddings.weight -> encoder.positions.table
    embeddings.LayerNorm -> encoder.embed_norm
    encoder.layer.{i}.attention.self.query -> encoder.{i}.self.q_proj
    encoder.layer.{i}.attention.self.key -> encoder.{i}.self.k_proj
    encoder.layer.{i}.attention.self.value -> encoder.{i}.self.v_proj
    encoder.layer.{i}.attention.output.dense -> encoder.{i}.self.out_proj
    encoder.layer.{i}.attention.output.LayerNorm -> encoder.{i}.self.norm
    encoder.layer.{i}.intermediate.dense -> encoder.{i}.ffn.up_proj
    encoder.layer.{i}.output.dense -> encoder.{i}.ffn.down_proj
    encoder.layer.{i}.output.LayerNorm -> encoder.{i}.ffn.norm
    encoder.layer.{i}.attention.LayerNorm -> encoder.{i}.self.norm
    encoder.layer.{i}.intermediate.LayerNorm -> encoder.{i}.ffn.norm
    LayerNorm -> encoder.final_norm
    encoder.layer.{i}.attention.ln -> encoder.{i}.self.norm
    encoder.layer.{i}.ln -> encoder.{i}.ffn.norm
    encoder.ln -> encoder.final_norm
    pooler.dense -> pooler
    embeddings_project -> encoder.embed_proj
""")
DISTILBERT = parse_rules("""
    embeddings.word_embeddings.weight -> embed.table
    embeddings.position_embeddings.weight -> encoder.positions.table
    embeddings.LayerNorm -> encoder.embed_norm
    transformer.layer.{i}.attention.q_lin -> encoder.{i}.self.q_proj
    transformer.layer.{i}.attention.k_lin -> encoder.{i}.self.k_proj
    transformer.layer.{i}.attention.v_lin -> encoder.{i}.self.v_proj
    transformer.layer.{i}.attention.out_lin -> encoder.{i}.self.out_proj
    transformer.layer.{i}.sa_layer_norm -> encoder.{i}.self.norm
    transformer.layer.{i}.ffn.lin1 -> encoder.{i}.ffn.up_proj
    transformer.layer.{i}.ffn.lin2 -> encoder.{i}.ffn.down_proj
    transformer.layer.{i}.output_layer_norm -> encoder.{i}.ffn.norm
""")
MPNET = BERT + parse_rules("""
    embeddings.position_embeddings.weight -> encoder.positions.absolute.table
    encoder.relative_attention_bias.weight -> encoder.positions.relative.table
    encoder.layer.{i}.attention.attn.q -> encoder.{i}.self.q_proj
    encoder.layer.{i}.attention.attn.k -> encoder.{i}.self.k_proj
    encoder.layer.{i}.attention.attn.v -> encoder.{i}.self.v_proj
    encoder.layer.{i}.attention.attn.o -> encoder.{i}.self.out_proj
    encoder.layer.{i}.attention.LayerNorm -> encoder.{i}.self.norm
""")
BERT_HEAD = """
    cls.predictions.transform.dense -> head_matrix
    cls.predictions.transform.LayerNorm -> head_norm
    cls.predictions.decoder.weight -> head.table
    cls.predictions.decoder.weight -> embed.table
    cls.predictions.decoder.bias -> head.bias
    cls.predictions.bias -> head.bias  (alias)
"""
ROBERTA_HEAD = """
    lm_head.dense -> head_matrix
    lm_head.layer_norm -> head_norm
    lm_head.decoder.weight -> head.table
    lm_head.decoder.weight -> embed.table
    lm_head.decoder.bias -> head.bias
    lm_head.bias -> head.bias  (alias)
"""
ELECTRA_HEAD = """
    generator_predictions.dense -> head_matrix
    generator_predictions.LayerNorm -> head_norm
    generator_lm_head.weight -> head.table
    generator_lm_head.weight -> embed.table
    generator_lm_head.bias -> head.bias
"""
DISTILBERT_HEAD = """
    vocab_transform -> head_matrix
    vocab_layer_norm -> head_norm
    vocab_projector.weight -> head.table
    vocab_projector.weight -> embed.table
    vocab_projector.bias -> head.bias
"""
CLASSIFIER_RULES: tuple[WeightRule, ...] = parse_rules("classifier -> head")
TOKEN_CLASSIFIER = HeadVariant(
    kind="classifier", read=read_token_classes, head_rules=CLASSIFIER_RULES
)
ROBERTA_CLASSIFIER_RULES = parse_rules("classifier.dense -> pooler\nclassifier.out_proj -> head")


def bert_family(name: str, class_prefix: str, prefix: str, read: Reader = bert) -> Family:
    """Return a family with the tensors and heads of BERT."""
    head = masked_lm_variant(
        f"{prefix}.embeddings.word_embeddings.weight", "cls.predictions.decoder"
    )
    return Family(
        name=name,
        variants={
            f"{class_prefix}Model": BACKBONE,
            f"{class_prefix}ForMaskedLM": with_head_rules(head, BERT_HEAD),
            f"{class_prefix}ForSequenceClassification": HeadVariant(
                kind="classifier", read=read_classes, head_rules=CLASSIFIER_RULES
            ),
            f"{class_prefix}ForTokenClassification": TOKEN_CLASSIFIER,
        },
        read=read,
        tensors=BERT,
    )


def roberta_family(
    name: str, class_prefix: str, prefix: str = "roberta", read: Reader = bert
) -> Family:
    """Return a family with the tensors and heads of RoBERTa."""
    head = masked_lm_variant(
        f"{prefix}.embeddings.word_embeddings.weight", "lm_head.decoder", activation="gelu"
    )
    return Family(
        name=name,
        variants={
            f"{class_prefix}Model": BACKBONE,
            f"{class_prefix}ForMaskedLM": with_head_rules(head, ROBERTA_HEAD),
            f"{class_prefix}ForSequenceClassification": HeadVariant(
                kind="classifier", read=read_classes, head_rules=ROBERTA_CLASSIFIER_RULES
            ),
            f"{class_prefix}ForTokenClassification": TOKEN_CLASSIFIER,
        },
        read=read,
        tensors=BERT,
        numbering=number_after_padding,
    )


def number_after_padding(values: Mapping[str, Any]) -> PositionNumbering:
    """Return the numbering of fairseq: positions start after the id of the padding token."""
    return PositionNumbering("ids", padding=values["pad_token_id"])


register_families(
    bert_family("bert", "Bert", "bert"),
    bert_family("ernie", "Ernie", "ernie", ernie),
    bert_family("megatron-bert", "MegatronBert", "bert", megatron),
    roberta_family("roberta", "Roberta"),
    roberta_family("xlm-roberta", "XLMRoberta"),
    roberta_family("camembert", "Camembert"),
    roberta_family("data2vec-text", "Data2VecText", "data2vec_text"),
    roberta_family(
        "roberta-prelayernorm", "RobertaPreLayerNorm", "roberta_prelayernorm", roberta_prelayernorm
    ),
    replace(
        roberta_family("mpnet", "MPNet", "mpnet", mpnet),
        tensors=MPNET,
        numbering=PositionNumbering("ids", padding=1),
    ),
    Family(
        name="electra",
        variants={
            "ElectraModel": BACKBONE,
            "ElectraForMaskedLM": with_head_rules(
                masked_lm_variant(
                    "electra.embeddings.word_embeddings.weight",
                    "generator_lm_head",
                    activation="gelu",
                ),
                ELECTRA_HEAD,
            ),
            "ElectraForTokenClassification": TOKEN_CLASSIFIER,
            "ElectraForSequenceClassification": HeadVariant(
                kind="classifier",
                read=lambda f: read_classes(f, "gelu"),
                head_rules=ROBERTA_CLASSIFIER_RULES,
            ),
        },
        read=electra,
        tensors=BERT,
    ),
    Family(
        name="distilbert",
        variants={
            "DistilBertModel": BACKBONE,
            "DistilBertForMaskedLM": with_head_rules(
                masked_lm_variant(
                    "distilbert.embeddings.word_embeddings.weight", "vocab_projector"
                ),
                DISTILBERT_HEAD,
            ),
            "DistilBertForTokenClassification": TOKEN_CLASSIFIER,
            "DistilBertForSequenceClassification": HeadVariant(
                kind="classifier",
                read=lambda f: read_classes(f, "relu"),
                head_rules=parse_rules("pre_classifier -> pooler") + CLASSIFIER_RULES,
            ),
        },
        read=distilbert,
        tensors=DISTILBERT,
    ),
)
