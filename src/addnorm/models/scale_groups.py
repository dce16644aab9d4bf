"""Parameter groups of an optimizer for a model with a scale."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.models.base import WiredModule
from addnorm.models.embeddings import Unembedding
from addnorm.scales import Factors, Scale, make_scale
from addnorm.scales.base import Rule
from addnorm.stacks.scaling import ParameterSize, base_parameter, matrix_ids
from addnorm.sublayers import FeedForward
from addnorm.sublayers.multihead import MultiHeadAttention

Group = dict[str, Any]
OPTIMIZER_RULES: dict[str, Rule] = {
    **{"sgd": "sgd", "asgd": "sgd", "muon": "muon", "muon_match_rms": "muon_match_rms"},
    **{"adafactor": "adafactor"},
}
"""Rules of optimizers by name in lower case; all others have that of Adam."""
ADAM_NAMES = (
    *("adam", "adamw", "radam", "nadam", "adamax", "adagrad", "adadelta", "rmsprop", "rprop"),
    *("lion", "lamb", "sophia", "adamw8bit", "adam8bit"),
)
"""Names of optimizers with the rule of Adam; a class may have any name."""


def scale_groups(
    model: nn.Module,
    *,
    lr: float = 1e-3,
    weight_decay: float = 0.01,
    eps: float = 1e-8,
    optimizer: str | type = "adam",
    scale: str | None = None,
) -> list[Group]:
    """Return the parameter groups of a model for any optimizer of torch.

    Each group has its learning rate, weight decay and, for optimizers like Adam, epsilon: those of
    the base model times the factors of the model's scale. Schedulers of torch keep the factors. A
    model without a scale, or of the base size, gets the settings as they are. Norms, scales, gates
    and biases have no weight decay.

    Args:
        model: an addnorm model, or a module that contains one, such as the result of `from_hf`
        lr: learning rate of the base model
        weight_decay: weight decay of the base model
        eps: epsilon of the base model
        optimizer: kind of optimizer or its class: "sgd"; "muon" (with torch's
            adjust_lr_fn="original") for matrices in layers, where the groups with
            `group["rule"] == "adam"` are for Adam; "adafactor"; all others are like "adam", whose
            steps are as large as the learning rate
        scale: rule for a model without one. Its forward pass stays as it is: the factors of the
            rule move into learning rates, as if initial weights had been multiplied by them. The
            table of a tied head keeps the rate of an embedding.

    >>> from addnorm.models import build
    >>> import torch
    >>> rule = "mup(base_dim=16)"
    >>> model = build(kind="lm", vocab=9, dim=32, depth=1, heads=2, scale=rule)
    >>> optimizer = torch.optim.AdamW(scale_groups(model, lr=0.01))
    >>> sorted({group["lr"] for group in optimizer.param_groups})
    [0.005, 0.01]
    """
    for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
        at_least = 0 if name == "weight_decay" else math.ulp(0)
        if not isinstance(value, int | float) or not at_least <= value < math.inf:
            kind = "number of at least 0" if name == "weight_decay" else "positive number"
            raise UserError(f"{name}: expected a {kind}, got {value!r}")
    rule = find_rule(optimizer)
    wired = find_wired_module(model)
    factors = ParameterFactors(wired, scale)
    no_decay = {id(wired.get_parameter(name)) for name in wired.no_decay()}
    groups: dict[tuple[Any, ...], Group] = {}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        own = "adam" if rule == "muon" and not factors.is_layer_matrix(parameter) else rule
        lr_factor, decay_factor, eps_factor = factors.find(parameter, own)
        decays = id(parameter) not in no_decay and parameter.ndim > 1
        group: Group = {
            "lr": lr * lr_factor,
            "weight_decay": weight_decay * decay_factor if decays else 0.0,
        }
        if own == "adam":
            group["eps"] = eps * eps_factor
        key = (own, *group.values())
        groups.setdefault(key, {"params": [], **group, "lr_factor": lr_factor, "rule": own})
        groups[key]["params"].append(parameter)
    return list(groups.values())


def find_rule(optimizer: str | type) -> Rule:
    """Return the rule of an optimizer: a name of a rule, or any class or name of an optimizer."""
    if not isinstance(optimizer, str | type):
        raise UserError(
            f'optimizer: expected "adam", "sgd", "muon", "adafactor" or a class, got {optimizer!r}'
        )
    name = (optimizer if isinstance(optimizer, str) else optimizer.__name__).lower()
    known = (*OPTIMIZER_RULES, *ADAM_NAMES)
    if isinstance(optimizer, str) and name not in known:
        raise UserError(
            unknown_name_message("optimizer", optimizer, known, choices="pass its class")
        )
    return OPTIMIZER_RULES.get(name, "adam")


def find_wired_module(model: nn.Module) -> WiredModule:
    """Return the addnorm model that a module is or contains.

    Raises:
        UserError: there is none, or there are several
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"model: expected an addnorm model, got {type(model).__name__}")
    found = list(_outermost(model))
    if len(found) != 1:
        raise UserError(
            f"model: expected one addnorm model, got {type(model).__name__} with {len(found)}; "
            "convert a model of transformers with addnorm.from_hf"
        )
    return found[0]


class ParameterFactors:
    """Factors on the optimizer's settings for each parameter of a model.

    Args:
        model: the model
        scale: rule for a model without one

    Raises:
        UserError: the model has another rule
    """

    def __init__(self, model: WiredModule, scale: str | None = None) -> None:
        stacks = model.stacks
        own = stacks[-1].scale_rule
        if scale is not None and own is not None:
            raise UserError(
                f"scale: expected None for a model with {stacks[-1].scale_call}, got {scale!r}"
            )
        self.rule: Scale | None = own if scale is None else make_scale(scale)
        self.dim = stacks[-1].plan.dim
        self.matrices = matrix_ids(part for stack in stacks for part in stack.weights())
        self.sizes: dict[int, ParameterSize] = {}
        if self.rule is None:
            self.moved: dict[int, float] = {}
            return
        ratio = self.rule.width_ratio(self.dim)
        weights = [base_parameter(weight) for _, weight in model.outer_weights()]
        for weight, size in zip(weights, model.outer_sizes(ratio), strict=True):
            self.sizes[id(weight)] = size
        for stack in stacks:
            self.sizes |= stack.parameter_sizes(self.rule)
        self.moved = {} if own is not None else dict(_moved_factors(model, self.rule))

    def is_layer_matrix(self, parameter: nn.Parameter) -> bool:
        """Return whether Muon takes a parameter: it is a matrix with a role in its sub-layer."""
        return id(parameter) in self.matrices

    def find(self, parameter: nn.Parameter, rule: Rule) -> Factors:
        """Return the factors of a parameter for an optimizer of a kind."""
        if self.rule is None:
            return Factors()
        size = self.sizes.get(id(parameter), ParameterSize("vector"))
        factors = self.rule.optimizer_factors(
            size.kind, rule, dim=self.dim, depth=size.depth, fan_in_ratio=size.fan_in_ratio
        )
        # A weight that starts times t in place of being used times t must move times t.
        t = self.moved.get(id(parameter), 1.0)
        power = {"sgd": 2, "adafactor": 0}.get(rule, 1)
        lr, decay, eps = factors
        return Factors(lr * t**power, decay * t**-power, eps / t)


def _outermost(module: nn.Module) -> Iterator[WiredModule]:
    if isinstance(module, WiredModule):
        yield module
        return
    for child in module.children():
        yield from _outermost(child)


def _moved_factors(model: WiredModule, rule: Scale) -> Iterator[tuple[int, float]]:
    """Yield factors of the forward pass that a model without a scale has in its weights, by id."""
    for module in model.modules():
        if isinstance(module, Unembedding) and module.table is not None:
            yield id(module.table), rule.output_multiplier(model.stacks[-1].plan.dim)
    for stack in model.stacks:
        factor = rule.residual_multiplier(stack.plan.depth)
        if factor != 1 and stack.wiring.multiplier_place != "branch":
            raise UserError(
                f"scale: expected a wiring whose branch is added as it is, got {stack.wiring_call};"
                f" build the model with scale=..., which multiplies behind the norm"
            )
        for sublayer in stack.sublayers:
            if isinstance(sublayer, MultiHeadAttention):
                base = rule.find_base_head_dim(
                    dim=stack.plan.dim, heads=sublayer.heads, head_dim=sublayer.options.head_dim
                )
                # sqrt(K_base) / K in place of 1 / sqrt(K)
                queries = (base / sublayer.head_dim) ** 0.5
                yield from _ids(sublayer.q_proj.parameters(), queries)
                yield from _ids(sublayer.out_proj.parameters(), factor)
            elif isinstance(sublayer, FeedForward):
                yield from _ids(sublayer.down_proj.parameters(), factor)


def _ids(parameters: Iterable[nn.Parameter], factor: float) -> Iterator[tuple[int, float]]:
    return ((id(parameter), factor) for parameter in parameters)
