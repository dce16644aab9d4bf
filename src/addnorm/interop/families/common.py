"""Helpers shared by the families of decoders."""

from collections.abc import Mapping
from typing import Any

from addnorm.interop.config_reader import ConfigReader
from addnorm.interop.family import HeadVariant, WeightRule, parse_rules

QKV = ", ".join(f"decoder.{{i}}.self.{name}_proj" for name in "qkv")
LM_HEAD = parse_rules("""
    lm_head.weight -> head.table
    lm_head.weight -> embed.table
    lm_head.bias -> head.bias
""")


def causal_variants(
    backbone: str, model: str, *, restarts_cache: bool = False
) -> Mapping[str, HeadVariant]:
    """Return the variants of a decoder: the language model and the backbone alone.

    Args:
        backbone: class without a head
        model: class of the language model
        restarts_cache: as in `HeadVariant`
    """
    return {
        model: HeadVariant(kind="lm", head_rules=LM_HEAD, restarts_cache=restarts_cache),
        backbone: HeadVariant(
            kind="lm", output_kind="hidden", without_prefix=True, read=lambda f: {"tied": True}
        ),
    }


def read_tying(f: ConfigReader, table: str) -> dict[str, Any]:
    """Read whether the head is tied to the embedding, and whether it has a bias."""
    return {"tied": f.is_tied("lm_head.weight", table), "head_bias": "lm_head.bias" in f.tensors}


def parse_rules_inside(module: str, text: str) -> tuple[WeightRule, ...]:
    """Parse rules and prefix their names with a module."""
    return tuple(
        WeightRule(f"{module}.{rule.theirs}", rule.ours, rule.transform)
        for rule in parse_rules(text)
    )
