"""Specifications of encoder and decoder stacks."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from addnorm.exporters.ctranslate2.library import import_ctranslate2
from addnorm.exporters.ctranslate2.norms import NormWriter
from addnorm.exporters.ctranslate2.refusal import refuse, to_array
from addnorm.norms.none import NoNorm
from addnorm.stacks import Decoder, Encoder
from addnorm.sublayers import CrossAttention, FeedForward, SelfAttention
from addnorm.sublayers.multihead import MultiHeadAttention
from addnorm.sublayers.positions import LearnedPositions, NoPositions, SinusoidalPositions
from addnorm.sublayers.qk_norm import HeadRMS, NoQueryKeyNorm
from addnorm.sublayers.relative import AlibiBias, LearnedT5Positions, T5Bias
from addnorm.sublayers.rotary import RotaryPositions
from addnorm.wirings.none import PlainResidual
from addnorm.wirings.parallel import Parallel
from addnorm.wirings.post_ln import PostLN
from addnorm.wirings.pre_ln import PreLN
from addnorm.wirings.sandwich import Sandwich

ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "gelu_sigmoid": "GELUSigmoid",
    "silu": "SWISH",
    "swiglu": "SWISH",
    "reglu": "RELU",
    "geglu": "GELU",
    "geglu_tanh": "GELUTanh",
}
"""Names of activations in CTranslate2; a gate has that of its activation."""
ATTRIBUTES = {
    "self": ("self_attention", "input_layer_norm", "post_attention_layer_norm"),
    "cross": (
        "attention",
        "external_pre_encoder_attention_layer_norm",
        "external_post_encoder_attention_layer_norm",
    ),
    "ffn": ("ffn", "pre_feedforward_layer_norm", "post_feedforward_layer_norm"),
}
"""Names of a sub-layer, of its norm and of its outer norm, the norms for Sandwich-LN."""


def set_linear(spec: Any, weight: Tensor, bias: Tensor | None) -> None:
    """Set the weight and the bias of a linear layer."""
    spec.weight = to_array(weight)
    if bias is not None:
        spec.bias = to_array(bias)


def check_stack(stack: Encoder | Decoder) -> None:
    """Raise `ExportRefusedError` unless the form of a stack exists in CTranslate2."""
    wiring, config, side = stack.wiring, stack.layer_config, stack.side
    is_pair = "cross" in stack.plan.kinds
    if type(wiring) not in (PostLN, PreLN, Sandwich, Parallel, PlainResidual):
        raise refuse(side, f"the wiring {stack.wiring_call}")
    if isinstance(wiring, Parallel) and (is_pair or side == "encoder"):
        raise refuse(side, "parallel sub-layers in an encoder or with cross-attention")
    for name, term in (("cap", "a cap of the attention logits"), ("window", "a window")):
        if getattr(config, name) is not None:
            raise refuse(side, f"{term} ({name}={getattr(config, name)})")
    if config.persistent:
        raise refuse(side, f"{config.persistent} persistent keys")
    if stack.embed_proj is not None:
        raise refuse(side, f"a projection of the embedding from {stack.embed_dim} features")
    if isinstance(stack.positions, LearnedT5Positions):
        raise refuse(f"{side}.positions", "a table of positions with a relative bias")
    if isinstance(stack.positions, AlibiBias) and side == "encoder":
        raise refuse(side, "ALiBi, which only decoders have")
    if isinstance(stack.positions, T5Bias) and side == "decoder" and not is_pair:
        raise refuse(side, "T5's relative positions, which it counts wrongly after a prompt")


class StackWriter:
    """Writer of one stack.

    Args:
        stack: an encoder or decoder that passed `check_stack`
        side: "encoder" or "decoder"
        norms: writer of norms
    """

    def __init__(self, stack: Encoder | Decoder, side: str, norms: NormWriter) -> None:
        self.stack, self.side, self.norms = stack, side, norms
        self.wiring, self.config, self.plan = stack.wiring, stack.layer_config, stack.plan
        self.dim, self.kinds = stack.plan.dim, stack.plan.kinds
        self.is_pair = "cross" in self.kinds
        has_norm = not isinstance(stack.embed_norm, NoNorm)
        site = f"{side}.embed_norm"
        self.entry_scale = norms.input_scale(stack.embed_norm, site) if has_norm else 1.0
        """Factor on embedding and positions that gives their norm the epsilon of the model."""

    def build(self, *, num_embeddings: int = 1) -> Any:
        """Return the specification of the stack without embedding and positions."""
        specs = import_ctranslate2().specs
        first = self.stack.sublayers[self.kinds.index("ffn")]
        attention = self.stack.sublayers[0]
        wiring, positions = self.wiring, self.stack.positions
        for name, value in self.config.attention_options.items():
            raise refuse(f"{self.side} layer 0", f"{name}={value}")
        assert isinstance(first, FeedForward) and isinstance(attention, SelfAttention)
        if first.activation not in ACTIVATIONS:
            raise refuse(f"{self.side} layer 0, ffn", f"the activation {first.activation}")
        options: dict[str, Any] = {
            "pre_norm": not isinstance(wiring, PostLN),
            "no_final_norm": True,
            "activation": getattr(specs.Activation, ACTIVATIONS[first.activation]),
            "relative_attention_bias": isinstance(positions, T5Bias),
            "ffn_glu": first.gated,
            "pre_post_layer_norm": isinstance(wiring, Sandwich),
            "num_heads_kv": attention.kv_heads if attention.kv_heads != attention.heads else None,
            "head_dim": attention.head_dim
            if attention.head_dim * self.stack.heads != self.dim
            else None,
            "qk_norm": isinstance(attention.qk_norm, HeadRMS),
            **self._rotary_options(),
        }
        if self.side == "encoder":
            spec = specs.TransformerEncoderSpec(
                self.plan.depth,
                self.stack.heads,
                num_source_embeddings=num_embeddings,
                embeddings_merge=specs.common_spec.EmbeddingsMerge.ADD,
                **options,
            )
        else:
            spec = specs.TransformerDecoderSpec(
                self.plan.depth,
                self.stack.heads,
                with_encoder_attention=self.is_pair,
                external_pre_post_encoder_layers=isinstance(wiring, Sandwich) and self.is_pair,
                parallel_residual=isinstance(wiring, Parallel),
                shared_layer_norm=isinstance(wiring, Parallel) and wiring.shared,
                alibi=isinstance(positions, AlibiBias),
                **options,
            )
        for site in self.plan.sites:
            self._set_site(spec.layer[site.layer], site.layer, self.kinds[site.slot], site.index)
        final = getattr(wiring, "final_norm", None)
        if final is not None and not isinstance(final, NoNorm):
            # The engine applies it wherever it exists, after Post-LN, too.
            vars(spec)["layer_norm"] = self.norms.make(final, f"{self.side}.final_norm", self.dim)
        if not isinstance(self.stack.embed_norm, NoNorm):
            vars(spec)["layernorm_embedding"] = self.norms.make(
                self.stack.embed_norm, f"{self.side}.embed_norm", self.dim
            )
        return spec

    def _set_site(self, layer: Any, number: int, kind: str, index: int) -> None:
        name, norm_name, outer_name = ATTRIBUTES[kind]
        site = f"{self.side} layer {number}, {kind}"
        sublayer, spec, wiring = self.stack.sublayers[index], getattr(layer, name), self.wiring
        scale = 1.0
        if isinstance(wiring, Sandwich):
            outer = wiring.outer_norms[index]
            scale = self.norms.input_scale(outer, site)
            norm = self.norms.make(wiring.norms[index], site, self.dim)
            vars(layer)[norm_name] = norm
            vars(layer)[outer_name] = self.norms.make(outer, site, self.dim)
        elif isinstance(wiring, Parallel):
            if not wiring.shared or kind == "self":
                own = "input_layer_norm" if kind == "self" else "post_attention_layer_norm"
                own = "shared_layer_norm" if wiring.shared else own
                module = wiring.norms[number if wiring.shared else index]
                vars(layer)[own] = self.norms.make(module, site, self.dim)
        else:
            norms = getattr(wiring, "norms", None)
            spec.layer_norm = self.norms.make(
                None if norms is None else norms[index], site, self.dim
            )
        if isinstance(sublayer, FeedForward):
            self._set_feed_forward(spec, sublayer, scale)
        elif isinstance(sublayer, SelfAttention | CrossAttention):
            self._set_attention(spec, sublayer, scale, site)
        else:
            raise refuse(site, f"a {type(sublayer).__name__}")

    def _set_feed_forward(self, spec: Any, ffn: FeedForward, scale: float) -> None:
        if ffn.gate_proj is None:
            set_linear(spec.linear_0, ffn.up_proj.weight, ffn.up_proj.bias)
        else:  # the engine activates linear_0
            set_linear(spec.linear_0, ffn.gate_proj.weight, ffn.gate_proj.bias)
            set_linear(spec.linear_0_noact, ffn.up_proj.weight, ffn.up_proj.bias)
        set_linear(spec.linear_1, *_scaled(ffn.down_proj, scale))

    def _set_attention(
        self, spec: Any, attention: MultiHeadAttention, scale: float, site: str
    ) -> None:
        query_scale = key_scale = 1.0
        if isinstance(attention.qk_norm, HeadRMS):
            if isinstance(attention, CrossAttention):
                raise refuse(site, "a query-key norm of cross-attention")
            norms = attention.qk_norm.query_norm, attention.qk_norm.key_norm
            query_scale, key_scale = (self.norms.input_scale(norm, site) for norm in norms)
            spec.q_norm, spec.k_norm = (
                self.norms.make(norm, site, attention.head_dim) for norm in norms
            )
        elif not isinstance(attention.qk_norm, NoQueryKeyNorm):
            raise refuse(site, f"the query-key norm {attention.qk_norm_call}; it has rms_head")
        query = _scaled(attention.q_proj, query_scale)
        key, value = _scaled(attention.k_proj, key_scale), _scaled(attention.v_proj, 1.0)
        if isinstance(attention, CrossAttention):
            groups: list[list[tuple[Tensor, Tensor | None]]] = [[query], [key, value]]
        else:
            groups = [[query, key, value]]
        for linear, parts in zip(spec.linear, groups, strict=False):
            set_linear(linear, *_stack_rows(parts))
        set_linear(spec.linear[-1], *_scaled(attention.out_proj, scale))
        if attention.logit_scale != attention.head_dim**-0.5:
            spec.queries_scale = np.float32(attention.logit_scale)
        positions = self.stack.positions
        if isinstance(positions, T5Bias) and isinstance(attention, SelfAttention):
            spec.relative_attention_bias = to_array(positions.table)
            spec.relative_attention_max_distance = np.dtype("int32").type(positions.distance)

    def _rotary_options(self) -> dict[str, Any]:
        rotary = self.stack.positions
        if not isinstance(rotary, RotaryPositions):
            return {}
        options: dict[str, Any] = {
            "rotary_dim": rotary.rotary_dim,
            "rotary_interleave": rotary.layout == "interleaved",
            "rotary_base": rotary.base,
        }
        if rotary.scaling == "none":
            return options
        if rotary.scaling == "linear":
            kind = import_ctranslate2().specs.attention_spec.RotaryScalingType.Linear
            return options | {"rotary_scaling_type": kind, "rotary_scaling_factor": rotary.factor}
        raise refuse(f"{self.side}.positions", f"rotary scaling {rotary.scaling}")

    def set_positions(self, spec: Any, max_length: int) -> None:
        """Store absolute positions as a table."""
        positions = self.stack.positions
        if isinstance(positions, RotaryPositions | T5Bias | AlibiBias):
            return
        if isinstance(positions, LearnedPositions):
            table: Tensor = positions.table
        elif isinstance(positions, NoPositions | SinusoidalPositions):
            # Without a table, the engine would add sinusoids of its own.
            zeros = torch.zeros(1, max_length, self.dim)
            table = positions.add(zeros, torch.arange(max_length))[0]
        else:
            raise refuse(f"{self.side}.positions", str(self.stack.positions_call))
        spec.position_encodings.encodings = to_array(table * self.entry_scale)


def _scaled(linear: nn.Linear, scale: float) -> tuple[Tensor, Tensor | None]:
    weight, bias = linear.weight.detach(), linear.bias
    return weight * scale, None if bias is None else bias.detach() * scale


def _stack_rows(parts: list[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
    """Concatenate matrices by rows, and their biases; a missing bias is zeros beside others."""
    weight = torch.cat([part[0] for part in parts])
    if all(bias is None for _, bias in parts):
        return weight, None
    biases = [torch.zeros(len(rows)) if bias is None else bias.float() for rows, bias in parts]
    return weight, torch.cat(biases)


def count_stack_positions(stack: Encoder | Decoder, max_length: int) -> int | None:
    """Return the number of positions that are stored for a stack; None if there is no table."""
    positions = stack.positions
    if isinstance(positions, RotaryPositions | T5Bias | AlibiBias):
        return None
    return positions.length if isinstance(positions, LearnedPositions) else max_length
