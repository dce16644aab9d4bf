"""Optimizers: those of torch, chosen by call string, with the parameter groups a model wants.

Matrices and tables of embeddings decay, as is usual with torch; norms, scales, gates, biases and
whatever else `model.no_decay()` names do not.
"""

import math
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from addnorm.core.calls import Call
from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.registry import Count, Positive, Registry
from addnorm.models.base import Model

Beta = Annotated[float, Field(ge=0, lt=1)]
Groups = list[dict[str, Any]]
Named = list[tuple[str, nn.Parameter]]

FUSED = ("cpu", "cuda", "mps", "xpu")
"""Devices on which torch has Adam in one kernel."""

registry: "Registry[Optimizer]" = Registry("optimizer")
register = registry.register


def make_optimizer(
    call: str | Call, model: Model, *, lr: float, weight_decay: float = 0.0
) -> "Optimizer":
    """Build the optimizer a call string names, for all parameters of a model that want a gradient.

    model: itself, not what DDP or torch.compile made of it, since parameters are told by name; with
    `fully_shard` after sharding.
    """
    if not (isinstance(lr, int | float) and 0 < lr < math.inf):
        raise UserError(f"lr must be a positive number, got {lr!r}")
    if not (isinstance(weight_decay, int | float) and 0 <= weight_decay < math.inf):
        raise UserError(f"weight_decay must be a number from 0, got {weight_decay!r}")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError("no parameter of this model wants a gradient; there is nothing to train")
    return registry.make(call, model, float(lr), float(weight_decay))


class Optimizer:
    """One or several optimizers of torch that step together; one thing to a trainer.

    Save and load its state with `get_optimizer_state_dict` and `set_optimizer_state_dict` of
    torch.distributed.checkpoint.state_dict, to which `parts` goes. The learning rate is no state:
    `set_lr` computes it anew at every step.
    """

    def __init__(self, lr: float, parts: list[torch.optim.Optimizer]) -> None:
        self.lr = lr
        """The peak learning rate."""
        self.parts = parts
        """The optimizers of torch."""

    def set_lr(self, factor: float) -> float:
        """Set the learning rate to a share of the peak; that learning rate."""
        lr = self.lr * factor
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = lr
        return lr

    def step(self) -> None:
        """Move the parameters along their gradients."""
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for part in self.parts:
            part.zero_grad()


@register(
    Card(
        name="adamw",
        title="AdamW",
        formula="p <- p - lr * (m / (sqrt(v) + eps) + decay * p)",
        paper=(
            "Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2017, arXiv 1711.05101"
        ),
        summary="Adam with a weight decay of its own; the usual choice.",
    )
)
class AdamW(Optimizer):
    """Steps of about the same size for every weight, and decay beside them.

    p <- p - lr * (m / (sqrt(v) + eps) + decay * p)

    m: running mean of the gradient with beta1, its start at 0 corrected
    v: running mean of its square with beta2, likewise

    beta2 is that of the original Transformer (Vaswani et al. 2017, section 5.3); torch has 0.999.
    """

    def __init__(
        self,
        model: Model,
        lr: float,
        weight_decay: float,
        *,
        beta1: Beta = 0.9,
        beta2: Beta = 0.98,
        eps: Positive = 1e-8,
    ) -> None:
        groups = _groups(_trained(model), model, weight_decay)
        super().__init__(lr, [_adamw(groups, lr, (beta1, beta2), eps)])


@register(
    Card(
        name="adam",
        title="Adam",
        formula="g <- g + decay * p; p <- p - lr * m / (sqrt(v) + eps)",
        paper="Kingma and Ba, Adam: A Method for Stochastic Optimization, 2014, arXiv 1412.6980",
        summary="The original; weight decay goes through the gradient, so it hardly decays.",
    )
)
class Adam(Optimizer):
    """Steps of about the same size for every weight.

    g <- g + decay * p
    p <- p - lr * m / (sqrt(v) + eps)

    m: running mean of g with beta1, its start at 0 corrected
    v: running mean of its square with beta2, likewise

    Without weight decay the same as adamw.
    """

    def __init__(
        self,
        model: Model,
        lr: float,
        weight_decay: float,
        *,
        beta1: Beta = 0.9,
        beta2: Beta = 0.98,
        eps: Positive = 1e-8,
    ) -> None:
        groups = _groups(_trained(model), model, weight_decay)
        fused = _fused(groups)
        super().__init__(
            lr, [torch.optim.Adam(groups, lr=lr, betas=(beta1, beta2), eps=eps, fused=fused)]
        )


@register(
    Card(
        name="radam",
        title="RAdam",
        formula="p <- p - lr * (r * m / (sqrt(v) + eps) + decay * p), r rises from 0 to 1",
        paper=(
            "Liu et al., On the Variance of the Adaptive Learning Rate and Beyond, 2019, arXiv "
            "1908.03265"
        ),
        summary="Adam with a warm-up of its own: trains Post-LN without one in the schedule.",
    )
)
class RAdam(Optimizer):
    """Adam that holds back while its second moment is uncertain.

    p <- p - lr * (r * m / (sqrt(v) + eps) + decay * p)      as soon as rho > 5
    p <- p - lr * (m + decay * p)                            before

    m, v: as in adamw
    rho: length of the average in v, 2 / (1 - beta2) - 1 at last
    r: sqrt((rho - 4) (rho - 2) rho_inf / ((rho_inf - 4) (rho_inf - 2) rho)), almost 0 at first

    Pitfall: with the usual beta2 = 0.999 the warm-up is far longer than with 0.98.
    """

    # NOTE[DIFF]: the paper adapts as soon as rho > 4; torch, whose code runs here, from 5 on.
    def __init__(
        self,
        model: Model,
        lr: float,
        weight_decay: float,
        *,
        beta1: Beta = 0.9,
        beta2: Beta = 0.98,
        eps: Positive = 1e-8,
    ) -> None:
        made = torch.optim.RAdam(
            _groups(_trained(model), model, weight_decay),
            lr=lr,
            betas=(beta1, beta2),
            eps=eps,
            decoupled_weight_decay=True,
            foreach=True,
        )
        super().__init__(lr, [made])


@register(
    Card(
        name="adafactor",
        title="Adafactor",
        formula="p <- p - max(floor, rms(p)) * min(lr, 1 / sqrt(t)) * clipped(g / sqrt(R C))",
        paper=(
            "Shazeer and Stern, Adafactor: Adaptive Learning Rates with Sublinear Memory Cost, "
            "2018, arXiv 1804.04235"
        ),
        summary="Keeps a row and a column for each matrix instead of two matrices; no momentum.",
    )
)
class Adafactor(Optimizer):
    """Adam whose second moment is a product of a row and a column, and whose step is relative.

    p <- p - max(floor, rms(p)) * min(lr, 1 / sqrt(t)) * u / max(1, rms(u) / clip) - lr * decay * p

    u: g / sqrt(v)
    v: R C / mean(R), means of g ** 2 over columns and rows, averaged with 1 - t ** -decay; of a
        vector g ** 2 itself, averaged likewise

    lr is a share of the weight's own size, so it is larger than Adam's, 0.01 say. Pitfall: what
    starts at 0 (ReZero's alpha, Fixup's last matrices) moves by no more than floor * lr a step and
    crawls; such wirings want another optimizer.
    """

    # NOTE[DIFF]: the paper adds 1e-30 to g ** 2; torch, whose code runs here, bounds v from below
    # by the square of the type's precision.
    def __init__(
        self,
        model: Model,
        lr: float,
        weight_decay: float,
        *,
        decay: Positive = 0.8,
        clip: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0,
        floor: Positive = 1e-3,
    ) -> None:
        if _sharded(model):
            raise UserError(
                "torch's Adafactor cannot work on shards of a matrix (fsdp); choose parallel=ddp, "
                "or another optimizer"
            )
        made = torch.optim.Adafactor(
            _groups(_trained(model), model, weight_decay),
            lr=lr,
            beta2_decay=-decay,
            eps=(None, floor),
            d=clip,
            foreach=True,
        )
        super().__init__(lr, [made])


@register(
    Card(
        name="muon",
        title="Muon, with AdamW for what is no matrix of the stacks",
        formula="P <- P - lr * (scale * orthogonal(g + momentum * M) + decay * P)",
        paper="Liu et al., Muon is Scalable for LLM Training, 2025, arXiv 2502.16982",
        summary="Moves weight matrices by the nearest orthogonal matrix to their momentum.",
    )
)
class Muon(Optimizer):
    """Orthogonal steps for the matrices of sub-layers; AdamW for embeddings, heads, norms, scales.

    M <- momentum * M + (1 - momentum) * g
    P <- P - lr * (scale * orthogonal(g + momentum * (M - g)) + decay * P)

    P: a matrix with a role in its sub-layer (query, key, value, out, ffn_in, ffn_out)
    orthogonal: `steps` Newton-Schulz iterations: U V of the singular value decomposition, about
    scale: 0.2 * sqrt(max(rows, columns)) with adjust=match_rms_adamw, so that one learning rate
        does for both; sqrt(max(1, rows / columns)) with adjust=original
    beta1, beta2, eps: of AdamW

    Jordan, Muon: An optimizer for hidden layers in neural networks, 2024; scale: Liu et al. 2025,
    section 2.2.
    """

    def __init__(
        self,
        model: Model,
        lr: float,
        weight_decay: float,
        *,
        momentum: Beta = 0.95,
        steps: Count = 5,
        adjust: Literal["match_rms_adamw", "original"] = "match_rms_adamw",
        beta1: Beta = 0.9,
        beta2: Beta = 0.98,
        eps: Positive = 1e-8,
    ) -> None:
        spared = model.no_decay()
        weights = [weight for stack in model.stacks for weight in stack.weights()]
        roles = {id(weight) for role, weight in weights if role != "bias"}
        matrices: Named = []
        others: Named = []
        for name, parameter in _trained(model):
            fits = id(parameter) in roles and parameter.ndim == 2 and name not in spared
            (matrices if fits else others).append((name, parameter))
        if not matrices:
            raise UserError(
                "muon moves weight matrices of sub-layers, and none of them wants a gradient here; "
                "choose adamw"
            )
        own = [parameter for _, parameter in matrices]
        made = _PreciseMuon if own[0].device.type == "cpu" else torch.optim.Muon
        parts: list[torch.optim.Optimizer] = [
            made(
                own,
                lr=lr,
                weight_decay=weight_decay,
                momentum=momentum,
                ns_steps=steps,
                adjust_lr_fn=adjust,
            )
        ]
        if others:
            groups = _groups(others, model, weight_decay)
            parts.append(_adamw(groups, lr, (beta1, beta2), eps))
        super().__init__(lr, parts)


class _PreciseMuon(torch.optim.Muon):
    """Muon of torch, computed in the type of the weights.

    torch computes it in bfloat16, which many CPUs only imitate, and then a step takes longer than
    the forward and the backward. Options and state are torch's.
    """

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
                update = _orthogonal(parameter.grad.lerp(buffer, momentum), group)
                rows, columns = parameter.shape
                scale = (
                    0.2 * math.sqrt(max(rows, columns))
                    if group["adjust_lr_fn"] == "match_rms_adamw"
                    else math.sqrt(max(1, rows / columns))
                )
                parameter.mul_(1 - lr * group["weight_decay"]).sub_(update, alpha=lr * scale)


def _orthogonal(matrix: Tensor, group: dict[str, Any]) -> Tensor:
    """The nearest orthogonal matrix, about: singular values come to lie between 0.7 and 1.2."""
    a, b, c = group["ns_coefficients"]
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=group["eps"])  # no singular value is above 1 now
    for _ in range(group["ns_steps"]):
        gram = x @ x.T
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x.T if tall else x


def _sharded(model: Model) -> bool:
    """Whether `fully_shard` has spread the parameters over processes."""
    if not torch.distributed.is_initialized():
        return False
    from torch.distributed.tensor import DTensor  # slow to import, and of no use to most

    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def _trained(model: Model) -> Named:
    return [(name, each) for name, each in model.named_parameters() if each.requires_grad]


def _groups(named: Named, model: Model, weight_decay: float) -> Groups:
    """What decays, and what does not; the one or the other may be absent."""
    spared = model.no_decay()
    decayed = [parameter for name, parameter in named if name not in spared]
    others = [parameter for name, parameter in named if name in spared]
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _adamw(groups: Groups, lr: float, betas: tuple[float, float], eps: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=_fused(groups))


def _fused(groups: Groups) -> bool | None:
    """One kernel for all, several times as fast; None leaves the choice to torch."""
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    return True if devices <= set(FUSED) else None
