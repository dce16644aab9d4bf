"""Reader of a transformers config that tracks every field.

A family's reader asks for fields one by one. `finish` then raises an error if a field with a value
was never read: an unread field could change the output, so the conversion would not be exact.
Families declare fields without influence with `ignore`, and fields with a single supported value
with `require`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from addnorm.core.errors import UserError

# Fields that change no output: return format, special tokens, initialization, labels.
IGNORED_FIELDS = {
    "_name_or_path", "architectures", "attn_implementation", "bad_words_ids",
    "begin_suppress_tokens", "bos_token_id", "chunk_size_feed_forward",
    "cross_attention_hidden_size", "decoder_start_token_id", "dtype", "eos_token_id",
    "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing",
    "id2label", "initializer_factor", "initializer_range", "init_std", "is_encoder_decoder",
    "label2id", "max_length", "model_type", "name_or_path", "num_beams", "num_labels",
    "output_attentions", "output_hidden_states", "pad_token_id", "pretraining_tp", "prefix",
    "problem_type", "return_dict", "sep_token_id", "start_token_id", "task_specific_params",
    "tokenizer_class", "torch_dtype", "torchscript", "transformers_version", "use_cache",
}  # fmt: skip

REWIRED_FIELD = "addnorm_norm"
"""Field of the config of a stock model that was saved with norms that its class does not have."""

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "gelu_sigmoid",
    "silu": "silu",
    "swish": "silu",
    "relu2": "relu2",
    "xielu": "xielu",
}
GATED_ACTIVATIONS = {"relu": "reglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "silu": "swiglu"}

# Fields that code shared by all families reads, whether the config class declares them or not.
SHARED_FIELDS = {"attention_chunk_size", "fusion_config", "head_dim", "is_causal", "layer_types"}
SHARED_FIELDS |= {"quantization_config", "rope_parameters", "rope_scaling", "sliding_window"}


class ConfigReader:
    """Config of a model whose fields are marked as read on access.

    Args:
        name: name of the model class, for error messages
        values: fields of the config
        tensors: state dict of the model, for facts missing in the config (a bias, tied weights)
        declared: fields that the config class declares; no code reads any others
    """

    def __init__(
        self,
        name: str,
        values: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        declared: Iterable[str],
    ) -> None:
        self.name, self.values, self.tensors = name, values, tensors
        self.declared = set(declared) | SHARED_FIELDS
        self.problems: list[str] = []
        self.notes: list[str] = []
        self._read_fields: set[str] = set()

    def __call__(self, name: str, *default: Any) -> Any:
        """Return a field and mark it as read; without a default, a missing field is a problem."""
        self._read_fields.add(name)
        if name not in self.values and not default:
            self.reject(f"its config has no {name}")
            return None
        return self.values.get(name, *default)

    def reject(self, reason: str) -> None:
        """Record a reason why the model cannot be converted; `finish` raises them all."""
        if reason not in self.problems:
            self.problems.append(reason)

    def require(self, **expected: Any) -> None:
        """Reject the model unless each field is missing or has the expected value."""
        for name, value in expected.items():
            actual = self(name, value)
            if actual != value:
                self.reject(f"{name}={actual!r} (only {value!r} is supported)")

    def ignore(self, *names: str) -> None:
        """Mark fields as read that do not affect the outputs of this family in evaluation mode."""
        self._read_fields.update(names)

    def require_equal(self, first: str, *others: str) -> Any:
        """Return the common value of several fields; reject the model if they differ."""
        value = self(first)
        for other in others:
            if self(other) != value:
                self.reject(f"{first}={value!r} with {other}={self(other)!r} (must be equal)")
        return value

    def dropout(self, first: str, *others: str) -> float:
        """Return a dropout rate; add a note if other rates, which we merge with it, differ."""
        value = float(self(first) or 0.0)
        for other in others:
            if float(self(other) or 0.0) != value:
                self.notes.append(
                    f"training uses {value} of {first} instead of {other}={self(other)}"
                )
        return value

    def activation(self, name: str, *, gated: bool = False) -> str:
        """Return the addnorm name of an activation field."""
        actual = self(name)
        ours = ACTIVATIONS.get(actual, "")
        ours = GATED_ACTIVATIONS.get(ours, "") if gated else ours
        if not ours:
            self.reject(f"{name}={actual!r} (not a supported{' gated' * gated} activation)")
            return "swiglu" if gated else "relu"
        return ours

    def is_tied(self, head: str, table: str) -> bool:
        """Return whether head and embedding are tied, by the config and by their values."""
        tied = bool(self("tie_word_embeddings", True))
        head_weight, table_weight = self.tensors.get(head), self.tensors.get(table)
        if not tied or head_weight is None or table_weight is None:
            return False
        return head_weight.is_meta or torch.equal(head_weight, table_weight)

    def has_tensor(self, name: str) -> bool:
        """Return whether the model has a tensor with this name, with any prefix."""
        return any(key == name or key.endswith(f".{name}") for key in self.tensors)

    def rotary(self, *, layout: str = "half", partial: bool = False) -> str:
        """Return the call string of rotary positions for `rope_parameters`.

        Args:
            layout: "half" rotates feature i with i + half, "interleaved" rotates neighbors
            partial: whether the class supports rotating a part of each head
        """
        parameters = self("rope_parameters") or {}
        by_layer_type = {n: each for n, each in parameters.items() if isinstance(each, dict)}
        local_base = None
        if len({str(each) for each in by_layer_type.values()}) > 1:
            local = dict(by_layer_type.get("sliding_attention", {}))
            local_base = local.pop("rope_theta", None)
            is_plain = {**local, "rope_type": local.get("rope_type")} == {"rope_type": "default"}
            if set(by_layer_type) != {"full_attention", "sliding_attention"} or not is_plain:
                self.reject(f"rope_parameters={parameters!r} (not supported)")
        rope = dict(by_layer_type.get("full_attention", parameters))
        if by_layer_type and "full_attention" not in by_layer_type:
            rope = dict(next(iter(by_layer_type.values())))
        base = float(rope.pop("rope_theta", 10000.0))
        share = float(rope.pop("partial_rotary_factor", 1.0))
        if share != 1.0 and not partial:
            self.reject(f"partial_rotary_factor={share} (this class rotates whole heads)")
        options = [f"base={base!r}"] if base != 10000.0 else []
        options += [f"share={share!r}"] if share != 1.0 else []
        options += [f"layout={layout}"] if layout != "half" else []
        options += [f"local_base={float(local_base)!r}"] if local_base is not None else []
        kind = rope.pop("rope_type", "default")
        scaling = ROTARY_SCALINGS.get(kind)
        if scaling is None:
            self.reject(f"rope_type={kind!r} (supported: {', '.join(ROTARY_SCALINGS)})")
        else:
            rope.setdefault("original_max_position_embeddings", self("max_position_embeddings", 0))
            options += [f"scaling={kind}"] if kind != "default" else []
            if kind == "longrope":
                options += self._longrope_options(rope)
            if kind == "dynamic":
                options += [f"length={self('max_position_embeddings')!r}"]
                self.notes.append(
                    "rope_type='dynamic' follows the longest sequence of each call; a model of "
                    "transformers keeps the frequencies of a longer one before it"
                )
            if kind == "yarn":
                options += self._yarn_options(rope, float(rope["factor"]))
            options += [f"{ours}={rope.pop(theirs)!r}" for theirs, ours in scaling.items()]
        for name, value in rope.items():
            if name not in ("type", "original_max_position_embeddings"):
                self.reject(f"rope_parameters with {name}={value!r} (not supported)")
        return f"rotary({', '.join(options)})" if options else "rotary"

    def _yarn_options(self, rope: dict[str, Any], factor: float) -> list[str]:
        """Return the options of YaRN that have a default, and remove them from the parameters."""
        amplitude, mscale = rope.pop("attention_factor", None), rope.pop("mscale", None)
        whole = rope.pop("mscale_all_dim", None)
        if amplitude is None and mscale and whole:  # DeepSeek's spelling of the amplitude
            growth = 0.1 * math.log(max(1.0, factor))
            amplitude = (mscale * growth + 1) / (whole * growth + 1)
        values = {"fast": rope.pop("beta_fast", None), "slow": rope.pop("beta_slow", None)}
        values |= {"truncate": rope.pop("truncate", None), "amplitude": amplitude}
        return [f"{name}={value!r}" for name, value in values.items() if value is not None]

    def _longrope_options(self, rope: dict[str, Any]) -> list[str]:
        """Return the divisors and the amplitude of LongRoPE, and remove them."""
        texts = {
            ours: " ".join(repr(float(value)) for value in rope.pop(theirs))
            for theirs, ours in (("short_factor", "short"), ("long_factor", "long"))
        }
        factor, amplitude = rope.pop("factor", None), rope.pop("attention_factor", None)
        if factor is None:
            factor = self("max_position_embeddings") / rope["original_max_position_embeddings"]
        options = [f"{name}={text!r}" for name, text in texts.items()]
        options += [f"factor={float(factor)!r}"]
        return options + ([f"amplitude={float(amplitude)!r}"] if amplitude is not None else [])

    def windows(self, window: str, types: str | None = None) -> int | tuple[int | None, ...] | None:
        """Return the attention windows of a config.

        Args:
            window: field with the window size
            types: field with the list of layer types, if the family has one
        """
        size = self(window, None)
        layer_types = None if types is None else self(types, None)
        if layer_types is None:
            return size
        sizes = {"full_attention": None, "sliding_attention": size}
        sizes |= {"global": None, "local": size}
        for layer_type in sorted(set(layer_types) - set(sizes)):
            self.reject(f"{types} with {layer_type!r} (not supported)")
        return find_cycle([sizes.get(layer_type) for layer_type in layer_types])

    def finish(self, *, all_read: bool = True) -> None:
        """Raise `UserError` with all problems, including fields that were never read.

        all_read: False if reading was interrupted, so that unread fields are no problem
        """
        for name in sorted(set(self.values) - self._read_fields - IGNORED_FIELDS):
            if name.startswith("_") or not all_read:
                continue
            if name not in self.declared:
                self.notes.append(
                    f"{name}={self.values[name]!r} is ignored: its config class has no such field"
                )
            elif self.values[name] is not None:
                self.reject(f"{name}={self.values[name]!r} (not supported)")
        if self.problems:
            raise UserError(f"cannot convert {self.name} exactly: {'; '.join(self.problems)}")


# Supported rotary scalings, and the addnorm names of their parameters.
ROTARY_SCALINGS: dict[str, dict[str, str]] = {
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low",
        "high_freq_factor": "high",
        "original_max_position_embeddings": "length",
    },
    "yarn": {"factor": "factor", "original_max_position_embeddings": "length"},
    "longrope": {"original_max_position_embeddings": "length"},
    "dynamic": {"factor": "factor"},
}


def find_cycle(sizes: Sequence[int | None]) -> int | tuple[int | None, ...] | None:
    """Return the shortest cycle that repeats to the list; a single value if all are equal.

    >>> find_cycle([4, None, 4, None]), find_cycle([4, 4]), find_cycle([4, None, None])
    ((4, None), 4, (4, None, None))
    """
    for length in range(1, len(sizes) + 1):
        repeated = [sizes[index % length] for index in range(len(sizes))]
        if list(sizes) == repeated:
            return sizes[0] if length == 1 else tuple(sizes[:length])
    return None
