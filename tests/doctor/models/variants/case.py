"""Registry of variants and of healthy models that resemble them, and blocks that they share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from tests.doctor.models.review.third_bugs.common import (
    LanguageModel,
    PreLayer,
    SelfAttention,
    merge_heads,
    split_heads,
)


@dataclass(frozen=True)
class Variant:
    """One bug with its healthy form."""

    name: str
    rule: str
    build: Callable[..., nn.Module]
    inputs: Callable[[], Any]
    options: dict[str, Any] = field(default_factory=dict)


VARIANTS: dict[str, Variant] = {}
LOOKALIKES: dict[str, Variant] = {}


def variant(rule: str, inputs: Callable[[], Any], **options: Any) -> Callable[..., Any]:
    """Register the decorated function `build(broken, **options)`."""

    def register(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
        VARIANTS[build.__name__] = Variant(build.__name__, rule, build, inputs, options)
        return build

    return register


def lookalike(inputs: Callable[[], Any]) -> Callable[..., Any]:
    """Register the decorated function `build()` as a healthy model."""

    def register(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        LOOKALIKES[build.__name__] = Variant(build.__name__, "", lambda _: build(), inputs)
        return build

    return register


class Attention(SelfAttention):
    """Attention whose heads are attended by `attend_heads(q, k, v, visible)`."""

    def attend_heads(self, q, k, v, visible):
        raise NotImplementedError

    def forward(self, x, visible=None):
        q, k, v = (split_heads(p(x), self.heads) for p in (self.q_proj, self.k_proj, self.v_proj))
        return self.o_proj(merge_heads(self.attend_heads(q, k, v, visible)))


class WithoutPositions(LanguageModel):
    """Language model whose layers must know positions themselves."""

    def __init__(self, layers, **options):
        super().__init__(layers, **options)
        del self.positions

    def embed(self, ids):
        return self.tokens(ids)


def language_model(make_attention, layers=2, model=LanguageModel, **options):
    """Return a Pre-LN model with the given attentions."""
    return model([PreLayer(make_attention()) for _ in range(layers)], **options)


def replace_norms(model, make_norm):
    """Replace all norms of a model of Pre-LN layers and return it."""
    for layer in model.layers:
        layer.norm1, layer.norm2 = make_norm(), make_norm()
    model.norm = make_norm()
    return model
