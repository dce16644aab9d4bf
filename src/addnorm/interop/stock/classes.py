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

    def tied(self, *, factor: float | None = None) -> bool:
        """Return whether the head can share the table, in a class with a factor on the embedding.

        factor: of the class; None if it takes any
        """
        same = factor is None or self.config.embedding_factor == factor
        return self.config.tied and same


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


def _llama(f: Facts, **changes: Any) -> dict[str, Any]:
    c = f.config
    return {
        "vocab_size": c.vocab,
        "hidden_size": c.dim,
        "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads,
        "num_key_value_heads": f.heads,
        "head_dim": f.head_dim,
        "intermediate_size": f.ffn_dim,
        "hidden_act": f.activation,
        "rms_norm_eps": f.eps,
        "rope_parameters": f.rope,
        "max_position_embeddings": f.length,
        "tie_word_embeddings": f.tied(factor=1.0),
        "attention_bias": c.bias,
        "mlp_bias": c.bias if c.ffn_bias is None else c.ffn_bias,
        "attention_dropout": c.attention_dropout,
        **TOKENS,
        **changes,
    }


def _windowed(f: Facts, **changes: Any) -> dict[str, Any]:
    window = f.config.window if isinstance(f.config.window, int) else None
    return _llama(f, sliding_window=window, **changes)


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
    return _llama(f, use_sliding_window=f.config.window is not None, **_layer_types(f))


def _gemma(f: Facts, **changes: Any) -> dict[str, Any]:
    tied = f.config.tied and f.scales_embedding
    return _llama(f, hidden_activation=f.activation, tie_word_embeddings=tied, **changes)


def _gemma2(f: Facts) -> dict[str, Any]:
    c = f.config
    return _gemma(
        f,
        query_pre_attn_scalar=f.head_dim,
        attn_logit_softcapping=c.cap,
        final_logit_softcapping=c.head_cap,
        **_layer_types(f),
    )


def _layer_llama(f: Facts, **changes: Any) -> dict[str, Any]:
    """Write a descendant of LLaMA with LayerNorm."""
    c = f.config
    own = {"layer_norm_eps": f.eps, "norm_epsilon": f.eps, "use_bias": c.bias}
    own |= {"use_qkv_bias": c.bias, "use_parallel_residual": f.wiring == "parallel"}
    return _windowed(f) | own | changes


def _cohere(f: Facts) -> dict[str, Any]:
    return _layer_llama(f, logit_scale=f.config.head_factor)


def _exaone4(f: Facts) -> dict[str, Any]:
    return _windowed(f, layer_types=["full_attention"] * f.config.depth)


def _gpt2(f: Facts) -> dict[str, Any]:
    c = f.config
    return {
        "vocab_size": c.vocab,
        "n_positions": f.length,
        "n_embd": c.dim,
        "n_layer": c.depth,
        "n_head": c.heads,
        "n_inner": f.ffn_dim,
        "activation_function": f.activation,
        "afn": {"gelu_tanh": "gelu", "silu": "swish"}.get(c.activation, c.activation),
        "layer_norm_epsilon": f.eps,
        "scale_attn_weights": c.attention_scale != 1.0,
        "rotary_dim": int(f.rope.get("partial_rotary_factor", 1.0) * f.head_dim),
        "tie_word_embeddings": f.tied(factor=1.0),
        "resid_pdrop": c.dropout,
        "embd_pdrop": c.dropout,
        "attn_pdrop": c.attention_dropout,
        **TOKENS,
    }


def _opt(f: Facts) -> dict[str, Any]:
    c = f.config
    return {
        "vocab_size": c.vocab,
        "hidden_size": c.dim,
        "word_embed_proj_dim": c.dim,
        "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads,
        "ffn_dim": f.ffn_dim,
        "max_position_embeddings": f.length,
        "do_layer_norm_before": f.wiring != "post_ln",
        "activation_function": f.activation,
        "dropout": c.dropout,
        "attention_dropout": c.attention_dropout,
        "tie_word_embeddings": f.tied(factor=1.0),
        **TOKENS,
    }


def _bart(f: Facts, **changes: Any) -> dict[str, Any]:
    c = f.config
    factor = c.dim**0.5 if f.scales_embedding else 1.0
    shared = c.source_vocab is None
    return {
        "vocab_size": c.source_vocab or c.vocab,
        "decoder_vocab_size": c.vocab,
        "d_model": c.dim,
        "decoder_layers": c.depth,
        "encoder_layers": c.encoder_depth or c.depth,
        "decoder_attention_heads": c.heads,
        "encoder_attention_heads": c.heads,
        "decoder_ffn_dim": f.ffn_dim,
        "encoder_ffn_dim": f.ffn_dim,
        "max_position_embeddings": f.length,
        "scale_embedding": f.scales_embedding,
        "activation_function": f.activation,
        "dropout": c.dropout,
        "attention_dropout": c.attention_dropout,
        "activation_dropout": c.activation_dropout,
        "tie_word_embeddings": f.tied(factor=factor),
        "share_encoder_decoder_embeddings": shared,
        "decoder_start_token_id": START,
        "forced_eos_token_id": None,
        **TOKENS,
        **changes,
    }


def _t5(f: Facts) -> dict[str, Any]:
    c = f.config
    call = positions.resolve(c.positions)
    gated = "gated-" if c.activation in GATED_ACTIVATIONS.values() else ""
    return {
        "vocab_size": c.vocab,
        "d_model": c.dim,
        "d_kv": f.head_dim,
        "d_ff": f.ffn_dim,
        "num_layers": c.encoder_depth or c.depth,
        "num_decoder_layers": c.depth,
        "num_heads": c.heads,
        "relative_attention_num_buckets": call.options.get("buckets", 32),
        "relative_attention_max_distance": call.options.get("distance", 128),
        "layer_norm_epsilon": f.eps,
        "feed_forward_proj": gated + f.activation,
        "dropout_rate": c.dropout,
        "tie_word_embeddings": f.tied(factor=1.0),
        "scale_decoder_outputs": abs(c.head_factor - c.dim**-0.5) < 1e-9,
        "decoder_start_token_id": START,
        **TOKENS,
    }


def _bert(f: Facts, *, offset: int = 0) -> dict[str, Any]:
    c = f.config
    return {
        "vocab_size": c.vocab,
        "hidden_size": c.dim,
        "num_hidden_layers": c.depth,
        "num_attention_heads": c.heads,
        "intermediate_size": f.ffn_dim,
        "hidden_act": f.activation,
        "hidden_dropout_prob": c.dropout,
        "attention_probs_dropout_prob": c.attention_dropout,
        "max_position_embeddings": f.length + offset,
        "type_vocab_size": c.types or 2,
        "layer_norm_eps": f.eps,
        "num_labels": c.classes or 2,
        "tie_word_embeddings": f.tied(factor=1.0),
        **TOKENS,
    }


def _roberta(f: Facts) -> dict[str, Any]:
    return _bert(f, offset=PAD + 1)


def _gpt_neox(f: Facts) -> dict[str, Any]:
    changes = {"use_parallel_residual": f.wiring == "parallel", "hidden_dropout": f.config.dropout}
    return _layer_llama(f, **changes, is_decoder=True)


def _bloom(f: Facts) -> dict[str, Any]:
    c = f.config
    own: dict[str, Any] = {"n_layer": c.depth, "n_head": c.heads, "hidden_dropout": c.dropout}
    own |= {"layer_norm_epsilon": f.eps, "vocab_size": c.vocab, "hidden_size": c.dim}
    return own | {"tie_word_embeddings": f.tied(factor=1.0), **TOKENS}


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
        StockClass("t5", _pair("T5"), _t5),
        StockClass("gpt2", {"lm": "GPT2LMHeadModel"}, _gpt2),
        StockClass("opt", _causal("OPT"), _opt),
        StockClass("openai-gpt", {"lm": "OpenAIGPTLMHeadModel"}, _gpt2),
        StockClass("llama", _causal("Llama"), _llama),
        StockClass("mistral", _causal("Mistral"), _windowed),
        StockClass("qwen2", _causal("Qwen2"), _qwen),
        StockClass("qwen3", _causal("Qwen3"), _qwen),
        StockClass("gemma", _causal("Gemma"), _gemma),
        StockClass("gemma2", _causal("Gemma2"), _gemma2),
        StockClass("olmo2", _causal("Olmo2"), _llama),
        StockClass("exaone4", _causal("Exaone4"), _exaone4),
        StockClass("glm4", _causal("Glm4"), _llama),
        StockClass("olmo", _causal("Olmo"), _llama),
        StockClass("starcoder2", _causal("Starcoder2"), _layer_llama),
        StockClass("stablelm", _causal("StableLm"), _layer_llama),
        StockClass("gpt_neox", _causal("GPTNeoX"), _gpt_neox),
        StockClass("phi", _causal("Phi"), _layer_llama),
        StockClass("cohere", _causal("Cohere"), _cohere),
        StockClass("gptj", _causal("GPTJ"), _gpt2),
        StockClass("bloom", _causal("Bloom"), _bloom),
        StockClass("bert", _encoder("Bert"), _bert),
        StockClass("megatron-bert", _encoder("MegatronBert"), _bert),
        StockClass("roberta-prelayernorm", _encoder("RobertaPreLayerNorm"), _roberta),
    )
}
"""Classes by `model_type`, in the order in which they are tried."""
