"""What families of decoders share."""

from collections.abc import Mapping
from typing import Any

from addnorm.interop.config_reader import Fields
from addnorm.interop.family import Form, Rule, rules

QKV = ", ".join(f"decoder.{{i}}.self.{name}_proj" for name in "qkv")
LM_HEAD = rules("""
    lm_head.weight -> head.table
    lm_head.weight -> embed.table
    lm_head.bias -> head.bias
""")


def causal(backbone: str, model: str) -> Mapping[str, Form]:
    """The usual two classes: a language model, and the backbone alone."""
    return {
        model: Form(kind="lm", heads=LM_HEAD),
        backbone: Form(kind="lm", answer="hidden", bare=True, read=lambda f: {"tied": True}),
    }


def tied(f: Fields, table: str) -> dict[str, Any]:
    """Whether the head is the embedding, and whether it has a bias."""
    return {"tied": f.tied("lm_head.weight", table), "head_bias": "lm_head.bias" in f.tensors}


def inside(module: str, text: str) -> tuple[Rule, ...]:
    """Rules of what stands inside a module."""
    return tuple(Rule(f"{module}.{rule.theirs}", rule.ours, rule.way) for rule in rules(text))
