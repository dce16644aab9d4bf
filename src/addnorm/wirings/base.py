"""The seam: how branches read from the stream and write to it, four verbs over a state."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.calls import Call
from addnorm.core.errors import InnerNormsIgnoredWarning, UserError
from addnorm.core.plan import Plan, Plugs, Shape, Site
from addnorm.core.registry import Registry
from addnorm.kernels.add_norm.ops import add_norm_with_sum, native_is_faster
from addnorm.kernels.hooks import has_hooks
from addnorm.norms.base import Norm, make_norm
from addnorm.norms.base import registry as norms

State = tuple[Tensor, ...]
Branch = Callable[[Tensor], Tensor]
Observer = Callable[[Site, State, Tensor], None]


class DropoutBranch(ABC):
    """A branch whose dropout can be told apart: called, it is dropout(raw(h), rate)."""

    @property
    @abstractmethod
    def rate(self) -> float:
        """Share of it that is dropped now."""

    @property
    @abstractmethod
    def has_hooks(self) -> bool:
        """Whether somebody looks at the dropout."""

    @abstractmethod
    def apply_sublayer(self, h: Tensor) -> Tensor:
        """What the sub-layer makes of `h`."""

    @abstractmethod
    def __call__(self, h: Tensor) -> Tensor:
        """The same with some of it dropped."""


registry: "Registry[Wiring]" = Registry("wiring")
register = registry.register


def make_wiring(call: "str | Call", plan: Plan) -> "Wiring":
    """Build the wiring a call string names, for a stack of that plan."""
    return registry.make(call, plan)


class Wiring(nn.Module, ABC):
    """How the sub-layers of a stack are joined; owner of every parameter of the residual path.

        state    = wiring.open(x)
        h, state = wiring.read(state, site)
        state    = wiring.write(state, site, branch)      branch = dropout(sublayer(h))
        y        = wiring.close(state)

    A state is a flat tuple of tensors whose first is the stream. Verbs act on each token alone
    (`alone`) and keep nothing on `self`. Below the verbs stand answers with a neutral default; a
    wiring gives those that its paper asks for.
    """

    scheme: str = "xavier_uniform"
    """How weights are drawn where the user does not say: a row of the table in `stacks/init.py`."""
    schedule: str = "cosine(warmup=0.1)"
    """The learning rate's schedule where the user does not say: a call string of
    `train/schedules/base.py`, spans as shares, since the runs of papers are longer than most.
    """
    tokenwise: bool = True
    """Whether its verbs act on each token alone, as they should; not where a draw is a sample's."""
    num_state_tensors: int | None = 1
    """Tensors in the state between two layers; None where they get more from layer to layer."""

    final_norm: Norm | None
    """The norm after the last site, in wirings that have one."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.plan = plan
        self._mask: Tensor | None = None
        self._cond: Tensor | None = None

    # The four verbs.

    def open(self, x: Tensor) -> State:
        """Embeddings to state."""
        return (x,)

    @abstractmethod
    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        """What the sub-layer sees, and the state, which may be rewritten here."""

    @abstractmethod
    def write(self, state: State, site: Site, branch: Tensor) -> State:
        """Merge the branch into the state."""

    @abstractmethod
    def close(self, state: State) -> Tensor:
        """What the head sees; the one and only owner of the final norm."""

    def step(self, state: State, site: Site, branch: Branch) -> State:
        """Read, sub-layer, write. A fused kernel may stand in for it; it must give the same."""
        h, state = self.read(state, site)
        return self.write(state, site, branch(h))

    # Optional answers.

    def gain(self, role: str, site: Site | None = None) -> float:
        """Factor on the start weights of a role (`embed` has no site)."""
        return 1.0

    def plugs(self, site: Site) -> Plugs:
        """Norms and scales inside the sub-layer."""
        return Plugs()

    def has_post_norm(self, site: Site) -> bool:
        """Whether the norm of a site stands behind its add, as in Post-LN."""
        return False

    def calibrate(self, run: Callable[[Observer], None]) -> None:
        """Data-dependent start: `run` does a forward, showing (site, state, branch) at writes."""

    def after_step(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Called after every step of the optimizer with the sub-layers' (role, weight)."""

    def trunk(self, state: State) -> Tensor:
        """The tensor that diagnostics call the stream."""
        return state[0]

    def no_decay(self) -> set[str]:
        """Names of own parameters that weight decay must leave alone: all that are no matrices."""
        return {name for name, parameter in self.named_parameters() if parameter.ndim < 2}

    def reset_parameters(self) -> None:
        """Put own parameters (norms have their own method) at their start values."""

    # What wirings are made of.

    def make_norm(self, dim: int | None = None) -> Norm:
        """A norm of the stack's choice; refused if it shows the future to a causal stack."""
        norm = make_norm(self._norm_call(dim), dim or self.plan.dim)
        if self.plan.causal and not norm.causal:
            raise UserError(
                f"norm {self.plan.norm} computes statistics over several tokens and would "
                "show later tokens to earlier ones "
                f"in a {self.plan.role} stack, attention mask or not; choose a norm of single"
                " tokens such as layer or rms"
            )
        return norm

    def _norm_call(self, dim: int | None) -> Call:
        """The stack's norm; inside a sub-layer its condition still has the stream's width."""
        call = self.plan.norm
        conditional = dim is not None and "cond_dim" in (norms.card(call.name).options or {})
        if not conditional or "cond_dim" in call.options:
            return call
        return Call(call.name, {"cond_dim": self.plan.dim, **call.options})

    def make_site_norms(self) -> nn.ModuleList:
        """A norm for every site."""
        return nn.ModuleList(self.make_norm() for _ in self.plan.sites)

    def set_gains(self, norms: nn.ModuleList, value: float) -> None:
        """Start norms with a gain of `value`; a norm without a gain refuses."""
        for norm in norms:
            if isinstance(norm, Norm):
                norm.reset_parameters()
                norm.set_gain(value)

    def norm(self, site: Site, list_name: str = "norms") -> Branch:
        """The norm of a site, from a list made by `site_norms`, to be called with a tensor."""
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
        """s = scale * x + branch(h) and N(s), by one kernel; None where there is none for this norm
        or these tensors, or where somebody looks at the norm or the dropout.
        """
        if not isinstance(branch, DropoutBranch) or not isinstance(norm, Norm):
            return None
        formula = norm.kernel_params()
        if formula is None or not native_is_faster(formula, branch.rate, x):
            return None
        if has_hooks(norm) or branch.has_hooks:
            return None
        return add_norm_with_sum(
            x, branch.apply_sublayer(h), formula, scale=scale, rate=branch.rate
        )

    def apply_final_norm(self, x: Tensor) -> Tensor:
        """The final norm, kept as `final_norm`, applied."""
        return x if self.final_norm is None else self.bind(self.final_norm)(x)

    def bind(self, norm: nn.Module) -> Branch:
        """A norm with the mask and condition of this forward, if it uses any."""
        if self._mask is None and self._cond is None:
            return norm
        return partial(norm, mask=self._mask, cond=self._cond)

    def with_context(self, mask: Tensor | None, cond: Tensor | None) -> "Wiring":
        """This wiring for one forward: the same parameters, with norms that know its mask and
        condition.

        A shallow copy, so that nothing of a forward is kept on the wiring itself; itself where no
        norm would look.
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
        """Sites with a place for plugs, kinds in `but` left out; warns of those that have none."""
        closed = [
            site
            for site in self.plan.sites
            if self.plan.sublayer_kind(site) not in exclude and self.plan.shape(site) is None
        ]
        if closed:
            name = type(self).__name__
            warnings.warn(
                f"{name} has norms or scales inside its sub-layers; {len(closed)} of "
                f"{len(self.plan.sites)} sub-layers are plain "
                f"modules without a place for them and get only the part of {name} around them. "
                "Derive them from addnorm.sublayers.Sublayer to take part",
                InnerNormsIgnoredWarning,
                stacklevel=2,
            )
        for site in self.plan.sites:
            shape = self.plan.shape(site)
            if shape is not None and self.plan.sublayer_kind(site) not in exclude:
                yield site, shape


class WiringModule(nn.Module, ABC):
    """A piece of a wiring with parameters of its own."""

    @abstractmethod
    def reset_parameters(self) -> None:
        """Put them at their start values."""


def autocast_disabled(x: Tensor) -> AbstractContextManager[Any]:
    """Where coefficients are computed: autocast must not round them."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)


def weighted_sum(weights: Tensor, tensors: tuple[Tensor, ...]) -> Tensor:
    """The sum of tensors, each with its scalar weight."""
    terms = [weight * tensor for weight, tensor in zip(weights.unbind(), tensors, strict=True)]
    return torch.stack(terms).sum(0) if len(terms) > 1 else terms[0]


def empty_parameter(*shape: int) -> nn.Parameter:
    """A parameter without a value yet; `reset_parameters` gives the start value."""
    return nn.Parameter(torch.empty(shape))
