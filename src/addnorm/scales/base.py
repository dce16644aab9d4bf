"""Scale registry: rules that carry the settings of a small base model over to another size.

A rule compares the width and the depth of a model with those of its base. From the two ratios
follow the initial weights, constants in the forward pass, and the learning rate, weight decay and
epsilon of each kind of parameter. At the base size every factor is 1.

To add a rule: a subclass of `Scale` in a file of this folder with `@register(Card(...))`, and an
import in `__init__.py`.
"""

from typing import Any, ClassVar, Literal, NamedTuple

from addnorm.core.calls import Call
from addnorm.core.errors import UserError
from addnorm.core.registry import Registry
from addnorm.core.validation import Depth, Width

__all__ = ["Depth", "Factors", "Kind", "Rule", "Scale", "Width", "make_scale", "registry"]

Kind = Literal["table", "matrix", "map", "vector"]
"""Kind of a parameter by its axes that grow with the width: the output of a table, input and output
of a matrix, the input of a map (such as a head without a factor); vectors are gains and biases."""
Rule = Literal["adam", "sgd", "muon", "muon_match_rms", "adafactor"]
"""Kind of an optimizer by the size of its steps. adam: all with steps of about the learning rate.
muon_match_rms: Muon whose steps grow with the width, `adjust=match_rms_adamw`."""

registry: "Registry[Scale]" = Registry("scale")
register = registry.register


class Factors(NamedTuple):
    """Factors on the settings of an optimizer."""

    lr: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0


class Scale:
    """Rule for models that differ in width, depth or both from their base.

    m_N = dim / base_dim and m_L = depth / base_depth; a missing base gives 1.
    """

    depth_exponent: ClassVar[float | None] = None
    """Exponent a of the branch's factor m_L ** -a; None for a rule without depth."""
    required: ClassVar[tuple[str, ...]] = ()
    """Options that must be given."""

    base_dim: int | None = None
    base_depth: int | None = None
    base_head_dim: int | None = None
    base_ffn_dim: int | None = None
    decay_exponent: float = 1.0

    def __init__(self, **options: Any) -> None:
        for name, value in options.items():
            setattr(self, name, value)
        for name in self.required:
            if getattr(self, name) is None:
                what = "width" if name == "base_dim" else "number of layers"
                raise UserError(
                    f"scale: expected {name}, the {what} of the base model, such as "
                    f"{name}={64 if name == 'base_dim' else 4}, got none"
                )

    def width_ratio(self, dim: int) -> float:
        """Return m_N of a model of width `dim`."""
        return 1.0 if self.base_dim is None else dim / self.base_dim

    def depth_ratio(self, depth: int) -> float:
        """Return m_L of a stack of `depth` layers."""
        has_rule = self.base_depth is not None and self.depth_exponent is not None
        return depth / self.base_depth if has_rule and self.base_depth else 1.0

    def ffn_ratio(self, dim: int, ffn_dim: int) -> float:
        """Return the ratio of the feed-forward's width to the base's; m_N unless that is given."""
        return self.width_ratio(dim) if self.base_ffn_dim is None else ffn_dim / self.base_ffn_dim

    def find_base_head_dim(self, *, dim: int, heads: int, head_dim: int | None) -> int:
        """Return the width of a head of the base model.

        Given or not, it equals that of the model at the base width. Unless it is given, a model
        with `head_dim` keeps it at every width, and one without keeps its number of heads.

        Raises:
            UserError: the heads do not divide the base's width
        """
        if self.base_head_dim is not None:
            return self.base_head_dim
        if head_dim is not None or self.base_dim is None:
            return head_dim or dim // heads
        if self.base_dim % heads:
            raise UserError(
                f"scale: expected heads={heads} to divide base_dim={self.base_dim}, or the width "
                "of the base's heads; add base_head_dim=..."
            )
        return self.base_dim // heads

    def residual_multiplier(self, depth: int) -> float:
        """Return m_L ** -a, the factor on every branch of a stack."""
        exponent = self.depth_exponent
        return 1.0 if exponent is None else float(self.depth_ratio(depth) ** -exponent)

    def output_multiplier(self, dim: int) -> float:
        """Return 1 / m_N, the factor on the logits of a language model."""
        return 1 / self.width_ratio(dim)

    def init_factor(self, kind: Kind, fan_in_ratio: float) -> float:
        """Return the factor on the base's standard deviation of initial weights.

        Args:
            kind: kind of the parameter
            fan_in_ratio: its input features over those in the base model
        """
        exponents: dict[Kind, float] = {"matrix": -0.5, "map": -1.0}
        return float(fan_in_ratio ** exponents.get(kind, 0.0))

    def optimizer_factors(
        self,
        kind: Kind,
        rule: Rule,
        *,
        dim: int,
        depth: int | None = None,
        fan_in_ratio: float = 1.0,
    ) -> Factors:
        """Return the factors of a parameter.

        Args:
            kind: kind of the parameter
            rule: kind of the optimizer
            dim: width of the model
            depth: layers of the stack that the parameter is in; None outside of layers
            fan_in_ratio: its input features over those in the base model, for a matrix or map
        """
        width, a = self.width_ratio(dim), self.depth_exponent
        layers = 1.0 if depth is None or a is None else self.depth_ratio(depth)
        lr = _width_factor(kind, rule, width, fan_in_ratio, in_block=depth is not None)
        # Decay is multiplied by the rate; in proportion to 1 / rate the two stay together.
        decay = lr**-self.decay_exponent
        eps = 1.0 if kind == "map" else 1 / width
        if a is not None:
            lr *= layers ** (2 * a - 1 if rule == "sgd" else a - 1)
            eps *= layers**-a
        return Factors(float(lr), float(decay), float(eps))


registry.base = Scale


def make_scale(call: "str | Call") -> Scale:
    """Build the rule that a call string names.

    >>> rule = make_scale("completep(base_dim=64, base_depth=4)")
    >>> rule.residual_multiplier(16), rule.output_multiplier(256)
    (0.25, 0.25)
    """
    return registry.make(call)


def _width_factor(kind: Kind, rule: Rule, width: float, fan_in: float, *, in_block: bool) -> float:
    """Return the factor of the learning rate that the width gives."""
    if rule == "sgd":
        return {"matrix": 1.0, "map": 1 / fan_in}.get(kind, width)
    if rule == "muon":
        return 1.0
    if rule == "muon_match_rms":
        return width**-0.5
    if rule == "adafactor":
        # Steps are relative to the size of the weights; maps inside of wirings start at 0.
        if kind == "matrix":
            return fan_in**-0.5
        return 1 / fan_in if kind == "map" and in_block else 1.0
    return 1 / fan_in if kind in ("matrix", "map") else 1.0
