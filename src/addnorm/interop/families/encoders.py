"""Encoders of text and of images: BERT, RoBERTa and ViT, with what differs from them in data."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from addnorm.interop.config_reader import Fields
from addnorm.interop.family import Family, Form, Places, Reader, Rule, add, rules


def bert(f: Fields) -> dict[str, Any]:
    """bert, roberta, electra, ..."""
    f.only(is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    f.inert("classifier_dropout", "summary_type", "summary_use_proj", "summary_activation")
    f.inert("summary_last_dropout")
    dim = f("hidden_size")
    if f("embedding_size", dim) != dim:
        f.refuse(f"embedding_size={f('embedding_size')} (must be hidden_size, {dim})")
    norm = f"layer(eps={f('layer_norm_eps')!r})"
    return {
        "vocab": f("vocab_size"),
        "dim": dim,
        "depth": f("num_hidden_layers"),
        "heads": f("num_attention_heads"),
        "ffn_dim": f("intermediate_size"),
        "wiring": "post_ln",
        "norm": norm,
        "embed_norm": norm,
        "types": f("type_vocab_size"),
        "positions": f"learned(length={f('max_position_embeddings')})",
        "activation": f.activation("hidden_act"),
        "dropout": f.dropout("hidden_dropout_prob"),
        "attention_dropout": f.dropout("attention_probs_dropout_prob"),
    }


def before(f: Fields) -> dict[str, Any]:
    """roberta-prelayernorm: Pre-LN"""
    return bert(f) | {"wiring": "pre_ln"}


def megatron(f: Fields) -> dict[str, Any]:
    """megatron-bert: Pre-LN, no norm on the embedding"""
    return bert(f) | {"wiring": "pre_ln", "embed_norm": "none"}


def ernie(f: Fields) -> dict[str, Any]:
    """ernie, without kinds of tasks"""
    f.only(use_task_id=False)
    f.inert("task_type_vocab_size")
    return bert(f)


def distilbert(f: Fields) -> dict[str, Any]:
    """distilbert: no segments"""
    f.inert("qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds")
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


def masked(table: str, head: str, *, activation: str | None = None) -> Form:
    """A class that predicts masked tokens.

    table: the embedding; head: module of the last matrix; activation: the one of its head where
        that is not the model's
    """

    def read(f: Fields) -> dict[str, Any]:
        if activation is not None and f.activation("hidden_act") != activation:
            f.refuse(f"hidden_act={f('hidden_act')!r} (its head always has {activation})")
        return {"tied": f.tied(f"{head}.weight", table), "head_bias": True, "head_layer": True}

    return Form(kind="masked_lm", read=read)


def with_heads(form: Form, text: str) -> Form:
    """The form with rules of its own."""
    return replace(form, heads=rules(text))


def plain(f: Fields) -> dict[str, Any]:
    """A backbone alone, with or without its pooler."""
    f.inert("tie_word_embeddings")
    pooler = f.present("pooler.dense.weight")
    activation = f("pooler_act", "tanh") if pooler else "tanh"
    return {"pooler": pooler, "pooler_activation": activation}


def classes(f: Fields, activation: str = "tanh") -> dict[str, Any]:
    """A head of classes behind a matrix and an activation."""
    f.inert("tie_word_embeddings")
    number = len(f("id2label"))
    return {"pooler": True, "pooler_activation": activation, "classes": number}


BARE = Form(kind="classifier", answer="hidden", bare=True, read=plain)
BERT = rules("""
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
""")
DISTILBERT = rules("""
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
BERT_HEAD = """
    cls.predictions.transform.dense -> head_matrix
    cls.predictions.transform.LayerNorm -> head_norm
    cls.predictions.decoder.weight -> head.table
    cls.predictions.decoder.weight -> embed.table
    cls.predictions.decoder.bias -> head.bias
    cls.predictions.bias -> head.bias  (spare)
"""
ROBERTA_HEAD = """
    lm_head.dense -> head_matrix
    lm_head.layer_norm -> head_norm
    lm_head.decoder.weight -> head.table
    lm_head.decoder.weight -> embed.table
    lm_head.decoder.bias -> head.bias
    lm_head.bias -> head.bias  (spare)
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
CLASSES: tuple[Rule, ...] = rules("classifier -> head")
ROBERTA_CLASSES = rules("classifier.dense -> pooler\nclassifier.out_proj -> head")


def bert_like(name: str, classes_of: str, prefix: str, read: Reader = bert) -> Family:
    """A family that is BERT by another name."""
    head = masked(f"{prefix}.embeddings.word_embeddings.weight", "cls.predictions.decoder")
    return Family(
        name=name,
        forms={
            f"{classes_of}Model": BARE,
            f"{classes_of}ForMaskedLM": with_heads(head, BERT_HEAD),
            f"{classes_of}ForSequenceClassification": Form(
                kind="classifier", read=classes, heads=CLASSES
            ),
        },
        read=read,
        tensors=BERT,
    )


def roberta(name: str, classes_of: str, prefix: str = "roberta", read: Reader = bert) -> Family:
    """A family that is RoBERTa by another name."""
    head = masked(
        f"{prefix}.embeddings.word_embeddings.weight", "lm_head.decoder", activation="gelu"
    )
    return Family(
        name=name,
        forms={
            f"{classes_of}Model": BARE,
            f"{classes_of}ForMaskedLM": with_heads(head, ROBERTA_HEAD),
            f"{classes_of}ForSequenceClassification": Form(
                kind="classifier", read=classes, heads=ROBERTA_CLASSES
            ),
        },
        read=read,
        tensors=BERT,
        places=after_padding,
    )


def after_padding(values: Mapping[str, Any]) -> Places:
    """Tokens counted from behind the number of the padding token."""
    return Places("ids", padding=values["pad_token_id"])


add(
    bert_like("bert", "Bert", "bert"),
    bert_like("ernie", "Ernie", "ernie", ernie),
    bert_like("megatron-bert", "MegatronBert", "bert", megatron),
    roberta("roberta", "Roberta"),
    roberta("xlm-roberta", "XLMRoberta"),
    roberta("camembert", "Camembert"),
    roberta("data2vec-text", "Data2VecText", "data2vec_text"),
    roberta("roberta-prelayernorm", "RobertaPreLayerNorm", "roberta_prelayernorm", before),
    Family(
        name="electra",
        forms={
            "ElectraModel": BARE,
            "ElectraForMaskedLM": with_heads(
                masked(
                    "electra.embeddings.word_embeddings.weight",
                    "generator_lm_head",
                    activation="gelu",
                ),
                ELECTRA_HEAD,
            ),
            "ElectraForSequenceClassification": Form(
                kind="classifier",
                read=lambda f: classes(f, "gelu"),
                heads=ROBERTA_CLASSES,
            ),
        },
        read=bert,
        tensors=BERT,
    ),
    Family(
        name="distilbert",
        forms={
            "DistilBertModel": BARE,
            "DistilBertForMaskedLM": with_heads(
                masked("distilbert.embeddings.word_embeddings.weight", "vocab_projector"),
                DISTILBERT_HEAD,
            ),
            "DistilBertForSequenceClassification": Form(
                kind="classifier",
                read=lambda f: classes(f, "relu"),
                heads=rules("pre_classifier -> pooler") + CLASSES,
            ),
        },
        read=distilbert,
        tensors=DISTILBERT,
    ),
)
