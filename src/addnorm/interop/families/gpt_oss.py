"""gpt-oss: attention sinks, and experts with biases and a clamped SwiGLU."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from addnorm.interop.config_reader import ConfigReader
from addnorm.interop.families import llama
from addnorm.interop.families.common import causal_variants
from addnorm.interop.families.llama_configs import read_common
from addnorm.interop.family import Family, parse_rules, register_families
from addnorm.interop.weight_mapping import TRANSFORMS, Shapes, TensorTransform

TENSORS = """
    layers.{i}.self_attn.sinks -> decoder.{i}.self.sinks
    layers.{i}.mlp.router -> decoder.{i}.ffn.router
    layers.{i}.mlp.experts.gate_up_proj -> decoder.{i}.ffn.experts.{e}.gate_proj.weight, \
decoder.{i}.ffn.experts.{e}.up_proj.weight  (interleaved_experts)
    layers.{i}.mlp.experts.gate_up_proj_bias -> decoder.{i}.ffn.experts.{e}.gate_proj.bias, \
decoder.{i}.ffn.experts.{e}.up_proj.bias  (interleaved_experts)
    layers.{i}.mlp.experts.down_proj -> decoder.{i}.ffn.experts.{e}.down_proj.weight  \
(transposed_experts)
    layers.{i}.mlp.experts.down_proj_bias -> decoder.{i}.ffn.experts.{e}.down_proj.bias  \
(transposed_experts)
"""


def gpt_oss(f: ConfigReader) -> dict[str, Any]:
    """Read gpt_oss: sinks, windows in every other layer, experts with biases.

    A softmax over the largest logits is a softmax over all of them, divided by its sum there.
    `hidden_act` is not read by the class, and the loss that balances experts changes no output.
    """
    f.ignore("hidden_act", "output_router_logits", "router_aux_loss_coef")
    limit, slope = float(f("swiglu_limit", 7.0)), float(f("swiglu_alpha", 1.702))
    return read_common(f, "rms(eps={eps!r})") | {
        "positions": f.rotary(),
        "window": f.windows("sliding_window", "layer_types"),
        "sink": "learned",
        "bias": bool(f("attention_bias")),
        "ffn_bias": True,
        "activation": f"swiglu_clamped(limit={limit!r}, slope={slope!r})",
        "experts": f("num_local_experts"),
        "experts_per_token": f("num_experts_per_tok"),
    }


def _split_interleaved(x: Tensor, shapes: Shapes, head_dim: int) -> Sequence[Tensor]:
    """Split (experts, [dim,] 2 * hidden), gates and values in turn, into rows of each expert."""
    return [
        each[..., half::2].mT if x.ndim == 3 else each[half::2] for each in x for half in (0, 1)
    ]


def _merge_interleaved(parts: Sequence[Tensor], shape: torch.Size, head_dim: int) -> Tensor:
    gates_and_values = zip(parts[::2], parts[1::2], strict=True)
    pairs = [torch.stack(pair, 1).flatten(0, 1) for pair in gates_and_values]
    return torch.stack([pair.mT if pair.ndim == 2 else pair for pair in pairs])


def _split_transposed(x: Tensor, shapes: Shapes, head_dim: int) -> Sequence[Tensor]:
    return [each.mT if each.ndim == 2 else each for each in x]


def _merge_transposed(parts: Sequence[Tensor], shape: torch.Size, head_dim: int) -> Tensor:
    return torch.stack([part.mT if part.ndim == 2 else part for part in parts])


TRANSFORMS["interleaved_experts"] = TensorTransform(_split_interleaved, _merge_interleaved)
TRANSFORMS["transposed_experts"] = TensorTransform(_split_transposed, _merge_transposed)

register_families(
    Family(
        name="gpt_oss",
        variants=causal_variants("GptOssModel", "GptOssForCausalLM"),
        read=gpt_oss,
        tensors=parse_rules(TENSORS + llama.TENSORS + llama.PRE_NORMS),
    )
)
