"""The config of a Hugging Face model, read field by field: what nobody reads is refused."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from addnorm.core.errors import UserError

# What changes no output: how answers are packed, which tokens are special, how weights start.
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
}
GATED_ACTIVATIONS = {"relu": "reglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "silu": "swiglu"}


# What code that all families share looks for, whether a config declares it or not.
SHARED_FIELDS = {"attention_chunk_size", "fusion_config", "head_dim", "is_causal", "layer_types"}
SHARED_FIELDS |= {"quantization_config", "rope_parameters", "rope_scaling", "sliding_window"}


class ConfigReader:
    """A config whose fields are ticked off as they are read; `finish` tells what is wrong.

    tensors: the state of the model, for what the config does not say (a bias of zeros, a tie)
    declared: fields that the config's class has; others are leftovers that no code reads
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
        """The value of a field; a default where there may be none."""
        self._read_fields.add(name)
        if name not in self.values and not default:
            self.reject(f"its config has no {name}")
            return None
        return self.values.get(name, *default)

    def reject(self, reason: str) -> None:
        """Remember what cannot be expressed."""
        if reason not in self.problems:
            self.problems.append(reason)

    def require(self, *values: Any, **expected: Any) -> None:
        """Fields that must have a certain value, absent ones being content."""
        for name, value in expected.items():
            got = self(name, value)
            if got != value:
                self.reject(f"{name}={got!r} (only {value!r} is understood)")

    def ignore(self, *names: str) -> None:
        """Fields that this family's classes do not use, or only in training or for the start."""
        self._read_fields.update(names)

    def require_equal(self, first: str, *others: str) -> Any:
        """The value of several fields that we have one place for."""
        value = self(first)
        for other in others:
            if self(other) != value:
                self.reject(f"{first}={value!r} with {other}={self(other)!r} (must be equal)")
        return value

    def dropout(self, first: str, *others: str) -> float:
        """A share that is dropped in training; where others differ from it, that is a note."""
        value = float(self(first) or 0.0)
        for other in others:
            if float(self(other) or 0.0) != value:
                self.notes.append(f"in training {other}={self(other)} is {value} here, as {first}")
        return value

    def activation(self, name: str, *, gated: bool = False) -> str:
        """An activation in our spelling."""
        got = self(name)
        ours = ACTIVATIONS.get(got, "")
        ours = GATED_ACTIVATIONS.get(ours, "") if gated else ours
        if not ours:
            self.reject(f"{name}={got!r} (of activations{' with a gate' * gated} we know others)")
            return "swiglu" if gated else "relu"
        return ours

    def is_tied(self, head: str, table: str) -> bool:
        """Whether head and embedding are one table, in the config and in fact."""
        wanted = bool(self("tie_word_embeddings", True))
        one, other = self.tensors.get(head), self.tensors.get(table)
        if not wanted or one is None or other is None:
            return False
        return one.is_meta or torch.equal(one, other)

    def has_tensor(self, name: str) -> bool:
        """Whether the model has a tensor whose name ends so."""
        return any(key == name or key.endswith(f".{name}") for key in self.tensors)

    def rotary(self, *, layout: str = "half", partial: bool = False) -> str:
        """Our rotary positions, from `rope_parameters`; partial: whether the class may turn a part
        of each head only.
        """
        given = self("rope_parameters")
        kinds = [value for value in (given or {}).values() if isinstance(value, dict)]
        if kinds and any(kind != kinds[0] for kind in kinds):
            self.reject(f"rope_parameters={given!r} (layers with rotations of their own)")
        rope = dict(kinds[0] if kinds else given or {})
        base = float(rope.pop("rope_theta", 10000.0))
        share = float(rope.pop("partial_rotary_factor", 1.0))
        if share != 1.0 and not partial:
            self.reject(f"partial_rotary_factor={share} (this class turns whole heads)")
        options = [f"base={base!r}"] if base != 10000.0 else []
        options += [f"share={share!r}"] if share != 1.0 else []
        options += [f"layout={layout}"] if layout != "half" else []
        kind = rope.pop("rope_type", "default")
        scaling = ROTARY_SCALINGS.get(kind)
        if scaling is None:
            self.reject(f"rope_type={kind!r} (of rotations we know {', '.join(ROTARY_SCALINGS)})")
        else:
            rope.setdefault("original_max_position_embeddings", self("max_position_embeddings", 0))
            options += [f"scaling={kind}"] if kind != "default" else []
            options += [f"{ours}={rope.pop(theirs)!r}" for theirs, ours in scaling.items()]
        for name, value in rope.items():
            if name not in ("type", "original_max_position_embeddings"):
                self.reject(f"rope_parameters with {name}={value!r}")
        return f"rotary({', '.join(options)})" if options else "rotary"

    def windows(self, window: str, types: str | None = None) -> int | tuple[int | None, ...] | None:
        """Our windows from a size and, where there is one, a list of the layers' kinds."""
        size = self(window, None)
        kinds = None if types is None else self(types, None)
        if kinds is None:
            return size
        known = {"full_attention": None, "sliding_attention": size}
        known |= {"global": None, "local": size}
        for kind in sorted(set(kinds) - set(known)):
            self.reject(f"{types} with {kind!r}")
        return find_cycle([known.get(kind) for kind in kinds])

    def finish(self, *, all_read: bool = True) -> None:
        """Refuse the model if anything was not understood; whole: all that matters was read."""
        for name in sorted(set(self.values) - self._read_fields - IGNORED_FIELDS):
            if name.startswith("_") or not all_read:
                continue
            if name not in self.declared:
                self.notes.append(f"{name}={self.values[name]!r} is no field of its config")
            elif self.values[name] is not None:
                self.reject(f"{name}={self.values[name]!r} (nobody looked at it)")
        if self.problems:
            raise UserError(
                f"cannot express {self.name} exactly: {'; '.join(self.problems)}; nothing was "
                "loaded"
            )


# Kinds of rotary scaling that we have, and what their numbers are called with us.
ROTARY_SCALINGS: dict[str, dict[str, str]] = {
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low",
        "high_freq_factor": "high",
        "original_max_position_embeddings": "length",
    },
}


def find_cycle(sizes: Sequence[int | None]) -> int | tuple[int | None, ...] | None:
    """The shortest turn that makes the list; a single number where all are alike.

    >>> cycle([4, None, 4, None]), cycle([4, 4]), cycle([4, None, None])
    ((4, None), 4, (4, None, None))
    """
    for length in range(1, len(sizes) + 1):
        turns = [sizes[place % length] for place in range(len(sizes))]
        if list(sizes) == turns:
            return sizes[0] if length == 1 else tuple(sizes[:length])
    return None


def to_embed_scale(value: float, dim: int) -> float | str:
    """A factor on the embedding in our spelling.

    >>> factor(8.0, 64), factor(2.0, 64)
    ('sqrt_dim', 2.0)
    """
    return "sqrt_dim" if value == math.sqrt(dim) else float(value)
