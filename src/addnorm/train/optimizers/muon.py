"""Muon: orthogonalized updates for matrices, AdamW for the other parameters."""

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.registry import Epsilon
from addnorm.models.base import WiredModule
from addnorm.scales.base import Rule
from addnorm.stacks.scaling import matrix_ids
from addnorm.train.optimizers.base import (
    Beta,
    NamedParameters,
    Optimizer,
    build_fused_adamw,
    decay_groups,
    register,
    trainable_parameters,
)

Steps = Annotated[int, Field(ge=1, le=100)]


@register(
    Card(
        name="muon",
        title="Muon, with AdamW for all other parameters",
        formula="P <- P - lr * (scale * orthogonal(g + momentum * (M - g)) + decay * P)",
        paper="Liu et al., Muon is Scalable for LLM Training, 2025, arXiv 2502.16982",
        summary="Moves weight matrices by the nearest orthogonal matrix to their momentum.",
    )
)
class Muon(Optimizer):
    """Orthogonal steps for the matrices of sub-layers; AdamW for embeddings, heads, norms, scales.

    M <- momentum * M + (1 - momentum) * g
    P <- P - lr * (scale * orthogonal(g + momentum * (M - g)) + decay * P)

    P: a matrix with a role in its sub-layer (query, key, value, out, ffn_in, ffn_out)
    orthogonal: `steps` Newton-Schulz iterations, approximately U V of the singular value
        decomposition U S V
    scale: 0.2 * sqrt(max(rows, columns)) with adjust=match_rms_adamw, so that one learning rate
        suits both; sqrt(max(1, rows / columns)) with adjust=original
    beta1, beta2, eps: of AdamW

    Jordan, Muon: An optimizer for hidden layers in neural networks, 2024; scale: Liu et al. 2025,
    section 2.2.
    """

    def __init__(
        self,
        model: WiredModule,
        lr: float,
        weight_decay: float,
        *,
        momentum: Beta = 0.95,
        steps: Steps = 5,
        adjust: Literal["match_rms_adamw", "original"] = "match_rms_adamw",
        beta1: Beta = 0.9,
        beta2: Beta = 0.98,
        eps: Epsilon = 1e-8,
    ) -> None:
        no_decay = model.no_decay()
        in_layers = matrix_ids(part for stack in model.stacks for part in stack.weights())
        matrices: NamedParameters = []
        others: NamedParameters = []
        for name, parameter in trainable_parameters(model):
            is_matrix = id(parameter) in in_layers and name not in no_decay
            (matrices if is_matrix else others).append((name, parameter))
        if not matrices:
            raise UserError(
                "muon: expected a trainable weight matrix in a sub-layer, got none; choose adamw"
            )
        # torch's own class is new in torch 2.9. On CPUs ours is faster, see there.
        on_cpu = matrices[0][1].device.type == "cpu"
        muon = _PreciseMuon if on_cpu else getattr(torch.optim, "Muon", _PreciseMuon)
        rule: Rule = "muon_match_rms" if adjust == "match_rms_adamw" else "muon"
        optimizers: list[torch.optim.Optimizer] = [
            muon(
                decay_groups(matrices, model, weight_decay, rule=rule),
                lr=lr,
                weight_decay=weight_decay,
                momentum=momentum,
                ns_steps=steps,
                adjust_lr_fn=adjust,
            )
        ]
        if others:
            groups = decay_groups(others, model, weight_decay, eps=eps)
            optimizers.append(build_fused_adamw(groups, lr, (beta1, beta2), eps))
        super().__init__(lr, optimizers)


class _PreciseMuon(torch.optim.Optimizer):
    """The update of torch.optim.Muon, computed in the dtype of the weights.

    torch computes in bfloat16, which many CPUs emulate; an optimizer step then takes longer than
    forward and backward together. Options and state are those of torch, so that a checkpoint fits
    both.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float,
        weight_decay: float,
        momentum: float,
        ns_steps: int,
        adjust_lr_fn: str,
    ) -> None:
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": True,
            "ns_coefficients": (3.4445, -4.775, 2.0315),
            "eps": 1e-7,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(parameter.grad)
                buffer = state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
                update = _orthogonalize(parameter.grad.lerp(buffer, momentum), group)
                rows, columns = parameter.shape
                scale = (
                    0.2 * math.sqrt(max(rows, columns))
                    if group["adjust_lr_fn"] == "match_rms_adamw"
                    else math.sqrt(max(1, rows / columns))
                )
                parameter.mul_(1 - lr * group["weight_decay"]).sub_(update, alpha=lr * scale)


def _orthogonalize(matrix: Tensor, group: dict[str, Any]) -> Tensor:
    """Return approximately the nearest orthogonal matrix; singular values end in [0.7, 1.2]."""
    a, b, c = group["ns_coefficients"]
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / x.norm().clamp(min=group["eps"])  # all singular values are now at most 1
    for _ in range(group["ns_steps"]):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.T if is_tall else x
