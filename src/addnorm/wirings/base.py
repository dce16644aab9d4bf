"""Base class of wirings: how sub-layers read from the residual stream and write to it.

A stack runs its wiring in four steps over a state, a flat tuple of tensors:

    state    = wiring.open(x)                         once
    h, state = wiring.read(state, site)               for every site (sub-layer)
    state    = wiring.write(state, site, branch)      branch = dropout(sublayer(h))
    y        = wiring.close(state)                    once

In Pre-LN, for example, `read` returns norm(x), `write` adds the branch to x, and `close` applies
the final norm.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from addnorm.core.calls import Call
from addnorm.core.errors import InnerNormsIgnoredWarning, UserError
from addnorm.core.plan import Plan, Plugs, Shape, Site
from addnorm.core.registry import Registry
from addnorm.kernels.add_norm.ops import add_norm_with_sum, has_fused_kernel
from addnorm.kernels.hook_detection import has_hooks
from addnorm.norms.base import Norm, make_norm
from addnorm.norms.base import registry as norms

State = tuple[Tensor, ...]
Streams = Annotated[int, Field(ge=1, le=64)]
"""Option of wirings with several streams; their weights grow with the square of the number."""
Branch = Callable[[Tensor], Tensor]
Observer = Callable[[Site, State, Tensor], None]


class DropoutBranch(ABC):
    """Branch that exposes its sub-layer and its dropout separately, for fused kernels.

    Calling it returns dropout(apply_sublayer(h), rate).
    """

    @property
    @abstractmethod
    def rate(self) -> float:
        """Dropout rate; 0 in evaluation mode."""

    @property
    @abstractmethod
    def has_hooks(self) -> bool:
        """Whether hooks observe the dropout, so that it must not be fused."""

    @abstractmethod
    def apply_sublayer(self, h: Tensor) -> Tensor:
        """Return the output of the sub-layer, without dropout."""

    @abstractmethod
    def __call__(self, h: Tensor) -> Tensor:
        """Return the output of the sub-layer, with dropout."""


registry: "Registry[Wiring]" = Registry("wiring")
register = registry.register


def make_wiring(call: "str | Call", plan: Plan) -> "Wiring":
    """Build the wiring that a call string names for the stack of a plan."""
    if not isinstance(plan, Plan):
        raise UserError(f"plan: expected a Plan, got {type(plan).__name__}")
    return registry.make(call, plan)


class Wiring(nn.Module, ABC):
    """Connection of the sub-layers of a stack; owns every parameter of the residual path.

    Subclasses implement `read`, `write` and `close`, and `open` if the state is not the stream
    alone. These methods act on each token separately (`tokenwise`) and store nothing on `self`. The
    first tensor of the state is the stream. All other methods have neutral defaults; a wiring
    overrides those that its paper prescribes.
    """

    scheme: str = "xavier_uniform"
    """Default initialization scheme, a row of the table in `stacks/init.py`."""
    schedule: str = "cosine(warmup=0.1)"
    """Recommended learning-rate schedule, a call string of `train/schedules`. Spans are fractions
    of the run, because the runs of papers are longer than most."""
    tokenwise: bool = True
    """Whether `read` and `write` act on each token separately; False if they draw per sample."""
    num_state_tensors: int | None = 1
    """Number of state tensors between two layers; None if it grows from layer to layer."""
    ignores_branch_size: bool = False
    """Whether every branch is normalized and then used as a direction, so that no factor on it
    has an effect."""
    multiplier_place: Literal["branch", "write", "none"] = "branch"
    """Where a factor on what is added to the stream belongs: on the branch before `write`; inside
    of `write`, behind a norm that would remove it; or nowhere, as sums are learned or averaged."""
    residual_multiplier: float = 1.0
    """The factor, in wirings that apply it in `write`."""

    bounds_logits: bool = False
    """Whether stream and weights are unit vectors, so that logits need a learned factor."""

    final_norm: Norm | None
    """Norm after the last site, in wirings that have one."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self._mask: Tensor | None = None
        self._cond: Tensor | None = None

    # The four steps

    def open(self, x: Tensor) -> State:
        """Build the initial state from the embeddings, (B, L, dim)."""
        return (x,)

    @abstractmethod
    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        """Return the input of a sub-layer and the state, which may change here."""

    @abstractmethod
    def write(self, state: State, site: Site, branch: Tensor) -> State:
        """Merge the output of a sub-layer, after dropout, into the state."""

    @abstractmethod
    def close(self, state: State) -> Tensor:
        """Return the output of the stack, after the final norm if the wiring has one."""

    def step(self, state: State, site: Site, branch: Branch) -> State:
        """Run read, branch and write; an override may fuse them if the result is the same."""
        h, state = self.read(state, site)
        return self.write(state, site, branch(h))

    # Optional properties of a wiring

    def finish_branch(self, site: Site, branch: Tensor) -> Tensor:
        """Return a branch as it is added: behind norms of its own, if the wiring has any."""
        return branch

    def add_branch(self, state: State, site: Site, branch: Tensor) -> State:
        """Write a finished branch; `write` is `finish_branch`, then `add_branch`."""
        return self.write(state, site, branch)

    def gain(self, role: str, site: Site | None = None) -> float:
        """Return the factor on the initial weights of a role; `embed` has no site."""
        return 1.0

    def plugs(self, site: Site) -> Plugs:
        """Return the norms and scales to insert into a sub-layer."""
        return Plugs()

    def has_post_norm(self, site: Site) -> bool:
        """Return whether the norm of a site follows its add, as in Post-LN."""
        return False

    def multiply_residual(self, factor: float) -> None:
        """Multiply `residual_multiplier`; only if `multiplier_place` is "write"."""
        self.residual_multiplier *= factor

    def calibrate(self, run: Callable[[Observer], None]) -> None:
        """Run the data-dependent initialization; does nothing by default.

        run: runs a forward pass and calls an observer with (site, state, branch) at every write
        """

    def after_step(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Constrain the weights of sub-layers after an optimizer step; does nothing by default.

        weights: (role, weight) of all sub-layers
        """

    def trunk(self, state: State) -> Tensor:
        """Return the tensor of the state that diagnostics treat as the stream."""
        return state[0]

    def no_decay(self) -> set[str]:
        """Return the names of own parameters without weight decay: all but matrices."""
        return {name for name, parameter in self.named_parameters() if parameter.ndim < 2}

    def reset_parameters(self) -> None:
        """Initialize own parameters; norms initialize themselves."""

    # Building blocks for subclasses

    def make_norm(self, dim: int | None = None) -> Norm:
        """Build a norm as the plan prescribes; raise `UserError` if it would break causality.

        dim: width; that of the stream if None
        """
        norm = make_norm(self._norm_call(dim), dim or self.plan.dim)
        if self.plan.causal and not norm.causal:
            raise UserError(
                f"norm {self.plan.norm} computes statistics over several tokens and would leak "
                f"later tokens to earlier ones in a {self.plan.role} stack; choose a norm of "
                "single tokens such as layer or rms"
            )
        return norm

    def _norm_call(self, dim: int | None) -> Call:
        """Return the call of the norm; inside a sub-layer, cond_dim stays the stream's width."""
        call = self.plan.norm
        conditional = dim is not None and "cond_dim" in (norms.card(call.name).options or {})
        if not conditional or "cond_dim" in call.options:
            return call
        return Call(call.name, {"cond_dim": self.plan.dim, **call.options})

    def make_site_norms(self) -> nn.ModuleList:
        """Build a norm for every site."""
        return nn.ModuleList(self.make_norm() for _ in self.plan.sites)

    def set_gains(self, norms: nn.ModuleList, value: float) -> None:
        """Initialize norms with a gain of `value`; raise `UserError` for norms without a gain."""
        for norm in norms:
            if isinstance(norm, Norm):
                norm.reset_parameters()
                norm.set_gain(value)

    def norm(self, site: Site, list_name: str = "norms") -> Branch:
        """Return the norm of a site, from a list built by `make_site_norms`, as a function."""
        return self.bind(getattr(self, list_name)[site.index])

    def add_and_norm(
        self,
        x: Tensor,
        h: Tensor,
        branch: Branch,
        *,
        norm: nn.Module | None,
        scale: float | Tensor = 1.0,
    ) -> tuple[Tensor, Tensor] | None:
        """Compute s = scale * x + branch(h) and N(s) with one fused kernel.

        Returns:
            (s, N(s)), or None if there is no kernel for this norm and these tensors, or if hooks
            observe the norm or the dropout.
        """
        if not isinstance(branch, DropoutBranch) or not isinstance(norm, Norm):
            return None
        params = norm.kernel_params()
        if params is None or not has_fused_kernel(params, branch.rate, scale, x):
            return None
        if has_hooks(norm) or branch.has_hooks:
            return None
        return add_norm_with_sum(x, branch.apply_sublayer(h), params, scale=scale, rate=branch.rate)

    def scale_residual(self, branch: Tensor) -> Tensor:
        """Multiply what `write` is about to add by `residual_multiplier`."""
        factor = self.residual_multiplier
        return branch if factor == 1 else factor * branch

    def apply_final_norm(self, x: Tensor) -> Tensor:
        """Apply `final_norm`, if there is one."""
        return x if self.final_norm is None else self.bind(self.final_norm)(x)

    def bind(self, norm: nn.Module) -> Branch:
        """Bind the mask and the condition of this forward pass to a norm, if it uses any."""
        if self._mask is None and self._cond is None:
            return norm
        return partial(norm, mask=self._mask, cond=self._cond)

    def with_context(self, mask: Tensor | None, cond: Tensor | None) -> "Wiring":
        """Return this wiring with the mask and the condition of one forward pass.

        The result is a shallow copy with the same parameters, so that the wiring itself keeps no
        state of a forward pass. If the norm uses neither, it is the wiring itself.
        """
        if (mask is None and cond is None) or not {"mask", "cond"} & set(
            norms.card(self.plan.norm.name).needs
        ):
            return self
        bound = type(self).__new__(type(self))  # not copy.copy, which torch.compile cannot trace
        bound.__dict__.update(self.__dict__)
        bound._mask, bound._cond = mask, cond
        bound._modules = {
            name: child.with_context(mask, cond) if isinstance(child, Wiring) else child
            for name, child in self._modules.items()
        }
        return bound

    def pluggable_sites(self, *, exclude: tuple[str, ...] = ()) -> Iterator[tuple[Site, Shape]]:
        """Yield (site, shape) of sub-layers that accept plugs; warn if some do not.

        exclude: kinds of sub-layers to skip
        """
        without_plugs = [
            site
            for site in self.plan.sites
            if self.plan.sublayer_kind(site) not in exclude and self.plan.shape(site) is None
        ]
        if without_plugs:
            name = type(self).__name__
            warnings.warn(
                f"{name} has norms or scales inside its sub-layers, but {len(without_plugs)} of "
                f"{len(self.plan.sites)} sub-layers are plain modules and get only the part of "
                f"{name} around them; derive them from addnorm.sublayers.Sublayer",
                InnerNormsIgnoredWarning,
                stacklevel=2,
            )
        for site in self.plan.sites:
            shape = self.plan.shape(site)
            if shape is not None and self.plan.sublayer_kind(site) not in exclude:
                yield site, shape


registry.base = Wiring


class WiringModule(nn.Module, ABC):
    """Module with parameters inside a wiring."""

    @abstractmethod
    def reset_parameters(self) -> None:
        """Initialize the parameters."""


def autocast_disabled(x: Tensor) -> AbstractContextManager[Any]:
    """Disable autocast inside the block, so that it does not round coefficients."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def weighted_sum(weights: Tensor, tensors: tuple[Tensor, ...]) -> Tensor:
    """Return the sum of tensors with scalar weights, (number of tensors)."""
    terms = [weight * tensor for weight, tensor in zip(weights.unbind(), tensors, strict=True)]
    return torch.stack(terms).sum(0) if len(terms) > 1 else terms[0]


def empty_parameter(*shape: int) -> nn.Parameter:
    """Return an uninitialized parameter; `reset_parameters` initializes it."""
    return nn.Parameter(torch.empty(shape))
