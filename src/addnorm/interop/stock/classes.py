"""Stock classes of transformers that a plain model can become, and their configs.

A writer is the inverse of the reader of a family: it sets the fields that the config of
transformers has. It need not check whether the rest fits, because the config is read back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from addnorm.core.calls import Call
from addnorm.data.tokenizer import END, PAD, START
from addnorm.interop.config_reader import ACTIVATIONS, GATED_ACTIVATIONS
from addnorm.models import Config
from addnorm.norms.base import registry as norms
from addnorm.sublayers.positions import registry as positions

MAX_LENGTH = 1024
"""Rows of a table of positions if the model has no limit of its own."""
TOKENS = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
THEIR_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
THEIR_ACTIVATIONS |= {gated: THEIR_ACTIVATIONS[act] for act, gated in GATED_ACTIVATIONS.items()}
THEIR_ACTIVATIONS |= {"gelu_tanh": "gelu_new", "geglu_tanh": "gelu_pytorch_tanh"}


@dataclass(frozen=True)
class Facts:
    """Fields of a config in the form that writers need.

    length: number of positions to write, if the class has a table of them
    """

    config: Config
    length: int

    @property
    def wiring(self) -> str:
        """Name of the wiring."""
        return Call.parse(self.config.wiring).name

    @property
    def eps(self) -> float:
        """Epsilon of the norm."""
        call = norms.resolve(self.config.norm)
        default = (norms.card(call.name).options or {}).get("eps")
        value = call.options.get("eps", None if default is None else default.default)
        return 0.0 if value is None else float(value)

    @property
    def heads(self) -> int:
        """Number of key and value heads."""
        return self.config.kv_heads or self.config.heads

    @property
    def head_dim(self) -> int:
        """Features of a head: the config's `head_dim`, or `dim / heads`."""
        return self.config.head_dim or self.config.dim // self.config.heads

    @property
    def activation(self) -> str:
        """Name of the activation in transformers."""
        return THEIR_ACTIVATIONS.get(self.config.activation, self.config.activation)

    @property
    def ffn_dim(self) -> int:
        """Hidden features of the feed-forward."""
        config = self.config
        gated = config.activation in GATED_ACTIVATIONS.values()
        return config.ffn_dim or (-(-config.dim // 3) * 8 if gated else 4 * config.dim)

    @property
    def rope(self) -> dict[str, Any]:
        """Rotary parameters of transformers."""
        call = positions.resolve(self.config.positions)
        options = call.options if call.name == "rotary" else {}
        values: dict[str, Any] = {"rope_theta": options.get("base", 10000.0)}
        values["rope_type"] = kind = options.get("scaling", "default").replace("none", "default")
        values["partial_rotary_factor"] = options.get("share", 1.0)
        if kind != "default":
            values["factor"] = options.get("factor", 8.0)
        if kind == "llama3":
            values["low_freq_factor"] = options.get("low", 1.0)
            values["high_freq_factor"] = options.get("high", 4.0)
        if kind == "yarn":
            names = {"fast": "beta_fast", "slow": "beta_slow", "truncate": "truncate"}
            values |= {theirs: options[ours] for ours, theirs in names.items() if ours in options}
        if kind == "longrope":
            for name in ("short", "long"):
                values[f"{name}_factor"] = [float(word) for word in options[name].split()]
        if kind in ("llama3", "yarn", "longrope"):
            values["original_max_position_embeddings"] = options.get("length", 8192)
        if options.get("amplitude") is not None:
            values["attention_factor"] = options["amplitude"]
        return values

    @property
    def scales_embedding(self) -> bool:
        """Whether the embedding is multiplied by sqrt(dim)."""
        return abs(self.config.embedding_factor - self.config.dim**0.5) < 1e-9

    def tied(self, factor: float) -> bool:
        """Return whether the head can share the table, in a class with a factor on it."""
        return self.config.tied and self.config.embedding_factor == factor


Writer = Callable[[Facts], dict[str, Any]]


@dataclass(frozen=True)
class StockClass:
    """Family of transformers with a class for each kind of model."""

    name: str
    """The `model_type`, value of `--as`."""
    classes: Mapping[str, str]
    """Names of classes by our kind; `encoder` for a classifier without classes, `token_classifier`
    for one without pooling."""
    write: Writer
    """Returns the fields of the config of transformers."""


def stock_kind(config: Config) -> str:
    """Return the key of `StockClass.classes` for a config."""
    if config.kind == "classifier" and config.classes is None:
        return "encoder"
    return "token_classifier" if config.pooling == "none" else config.kind


SYNONYMS: dict[str, tuple[str, ...]] = {
    "dim": ("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"),
    "layers": ("num_hidden_layers", "n_layer", "decoder_layers", "num_decoder_layers"),
    "encoder_layers": ("encoder_layers", "num_layers"),
    "heads": (
        *("num_attention_heads", "n_head", "num_heads"),
        *("encoder_attention_heads", "decoder_attention_heads"),
    ),
    "ffn_dim": (
        *("intermediate_size", "n_inner", "ffn_dim", "d_ff"),
        *("encoder_ffn_dim", "decoder_ffn_dim"),
    ),
    "head_dim": ("head_dim", "d_kv"),
    "activation": ("hidden_act", "hidden_activation", "activation_function"),
    "eps": (*("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),),
    "bias": ("attention_bias", "use_bias", "use_qkv_bias"),
    "length": ("max_position_embeddings", "n_positions"),
    "dropout": (
        *("dropout", "dropout_rate", "hidden_dropout", "hidden_dropout_prob"),
        *("resid_pdrop", "embd_pdrop"),
    ),
    "attention_dropout": ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob"),
}
"""Names of the same value in the configs of transformers. A config gets those that it declares."""


def write_config(f: Facts, **changes: Any) -> dict[str, Any]:
    """Return the fields of any config of transformers, of which a class declares some.

    Args:
        f: what the model has
        **changes: fields that a family means in another way
    """
    c = f.config
    gated = c.activation in GATED_ACTIVATIONS.values()
    encoder_depth = c.encoder_depth or c.depth
    values = {
        "dim": c.dim,
        "layers": c.depth,
        "encoder_layers": encoder_depth,
        "heads": c.heads,
        "ffn_dim": f.ffn_dim,
        "head_dim": f.head_dim,
        "activation": f.activation,
        "eps": f.eps,
        "bias": c.bias,
        "length": f.length,
        "dropout": c.dropout,
        "attention_dropout": c.attention_dropout,
    }
    fields: dict[str, Any] = {
        name: values[key] for key, names in SYNONYMS.items() for name in names
    }
    options = positions.resolve(c.positions).options
    if options.get("scaling") == "dynamic":  # it has no other field for the length
        fields |= dict.fromkeys(SYNONYMS["length"], options.get("length", 8192))
    fields |= {
        "vocab_size": c.source_vocab or c.vocab,
        "decoder_vocab_size": c.vocab,
        "num_key_value_heads": f.heads,
        "mlp_bias": c.bias if c.ffn_bias is None else c.ffn_bias,
        "rope_parameters": f.rope,
        "rotary_dim": int(f.rope["partial_rotary_factor"] * f.head_dim),
        "relative_attention_num_buckets": options.get("buckets", 32),
        "relative_attention_max_distance": options.get("distance", 128),
        "sliding_window": c.window if isinstance(c.window, int) else None,
        "scale_attn_weights": c.attention_scale != 1.0,
        "activation_dropout": c.activation_dropout,
        "afn": {"gelu_tanh": "gelu", "silu": "swish"}.get(c.activation, c.activation),
        "feed_forward_proj": ("gated-" if gated else "") + f.activation,
        "do_layer_norm_before": f.wiring != "post_ln",
        "use_parallel_residual": f.wiring == "parallel",
        "scale_embedding": f.scales_embedding,
        "scale_decoder_outputs": abs(c.head_factor - c.dim**-0.5) < 1e-9,
        "logit_scale": c.head_factor,
        "type_vocab_size": c.types or 2,
        "num_labels": c.classes or 2,
        "share_encoder_decoder_embeddings": c.source_vocab is None,
        "tie_word_embeddings": f.tied(1.0),
        "decoder_start_token_id": START,
        "forced_eos_token_id": None,
    }
    if c.kind == "seq2seq":
        fields["num_hidden_layers"] = encoder_depth
    return fields | TOKENS | changes


def _layer_types(f: Facts) -> dict[str, Any]:
    """Return the windows by layer, as Gemma 2, Qwen and OLMo 3 have them."""
    window, depth = f.config.window, f.config.depth
    cycle = window if isinstance(window, tuple) else (window,)
    sizes = [cycle[index % len(cycle)] for index in range(depth)]
    largest = max((size for size in sizes if size is not None), default=None)
    types = ["full_attention" if size is None else "sliding_attention" for size in sizes]
    # Gemma 2 fails without a number, even if no layer uses it.
    return {"sliding_window": largest or 4096, "layer_types": types}


def _qwen(f: Facts) -> dict[str, Any]:
    return write_config(f, use_sliding_window=f.config.window is not None, **_layer_types(f))


def _gemma(f: Facts, **changes: Any) -> dict[str, Any]:
    tied = f.config.tied and f.scales_embedding
    return write_config(f, tie_word_embeddings=tied, **changes)


def _gemma2(f: Facts) -> dict[str, Any]:
    return _gemma(
        f,
        query_pre_attn_scalar=f.head_dim,
        attn_logit_softcapping=f.config.cap,
        final_logit_softcapping=f.config.head_cap,
        **_layer_types(f),
    )


def _exaone4(f: Facts) -> dict[str, Any]:
    return write_config(f, layer_types=["full_attention"] * f.config.depth)


def _gpt_neox(f: Facts) -> dict[str, Any]:
    return write_config(f, is_decoder=True)


def _bart(f: Facts) -> dict[str, Any]:
    factor = f.config.dim**0.5 if f.scales_embedding else 1.0
    return write_config(f, tie_word_embeddings=f.tied(factor))


def _roberta(f: Facts) -> dict[str, Any]:
    return write_config(f, max_position_embeddings=f.length + PAD + 1)


def _causal(prefix: str) -> dict[str, str]:
    return {"lm": f"{prefix}ForCausalLM"}


def _encoder(prefix: str) -> dict[str, str]:
    return {
        "masked_lm": f"{prefix}ForMaskedLM",
        "classifier": f"{prefix}ForSequenceClassification",
        "token_classifier": f"{prefix}ForTokenClassification",
        "encoder": f"{prefix}Model",
    }


def _pair(prefix: str) -> dict[str, str]:
    return {"seq2seq": f"{prefix}ForConditionalGeneration"}


STOCK_CLASSES = {
    row.name: row
    for row in (
        StockClass("marian", {"seq2seq": "MarianMTModel"}, _bart),
        StockClass("bart", _pair("Bart"), _bart),
        StockClass("pegasus", _pair("Pegasus"), _bart),
        StockClass("blenderbot", _pair("Blenderbot"), _bart),
        StockClass("mbart", _pair("MBart"), _bart),
        StockClass("t5", _pair("T5"), write_config),
        StockClass("gpt2", {"lm": "GPT2LMHeadModel"}, write_config),
        StockClass("opt", _causal("OPT"), write_config),
        StockClass("openai-gpt", {"lm": "OpenAIGPTLMHeadModel"}, write_config),
        StockClass("llama", _causal("Llama"), write_config),
        StockClass("mistral", _causal("Mistral"), write_config),
        StockClass("qwen2", _causal("Qwen2"), _qwen),
        StockClass("qwen3", _causal("Qwen3"), _qwen),
        StockClass("gemma", _causal("Gemma"), _gemma),
        StockClass("gemma2", _causal("Gemma2"), _gemma2),
        StockClass("olmo2", _causal("Olmo2"), write_config),
        StockClass("exaone4", _causal("Exaone4"), _exaone4),
        StockClass("glm4", _causal("Glm4"), write_config),
        StockClass("olmo", _causal("Olmo"), write_config),
        StockClass("starcoder2", _causal("Starcoder2"), write_config),
        StockClass("stablelm", _causal("StableLm"), write_config),
        StockClass("gpt_neox", _causal("GPTNeoX"), _gpt_neox),
        StockClass("phi", _causal("Phi"), write_config),
        StockClass("cohere", _causal("Cohere"), write_config),
        StockClass("gptj", _causal("GPTJ"), write_config),
        StockClass("bloom", _causal("Bloom"), write_config),
        StockClass("bert", _encoder("Bert"), write_config),
        StockClass("megatron-bert", _encoder("MegatronBert"), write_config),
        StockClass("roberta-prelayernorm", _encoder("RobertaPreLayerNorm"), _roberta),
    )
}
"""Classes by `model_type`, in the order in which they are tried."""
