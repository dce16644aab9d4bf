"""Stack: the loop that joins sub-layers by a wiring.

For every site the stack calls `wiring.step(state, site, branch)`, where `branch` is the sub-layer
with its arguments and dropout. By default a step is

    h, state = wiring.read(state, site)            input of the sub-layer
    state = wiring.write(state, site, branch(h))   add its output to the stream

between `wiring.open(x)` and `wiring.close(state)`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import ArrangementMismatchError, UserError
from addnorm.core.plan import Plan, Site
from addnorm.kernels.dropout import Dropout
from addnorm.kernels.inputs import check_tensor
from addnorm.norms.base import check_mask
from addnorm.norms.base import registry as norms
from addnorm.scales import Scale, make_scale
from addnorm.scales import registry as scales
from addnorm.stacks import init
from addnorm.stacks.arrangement import decode_text, encode_text, format_arrangement
from addnorm.stacks.branch import SublayerBranch, TappedBranch
from addnorm.stacks.forward_signature import ForwardSignature, as_sublayer
from addnorm.stacks.roles import StackRoles
from addnorm.stacks.scaling import (
    ParameterSize,
    apply_residual_multiplier,
    init_ratios,
    measure_others,
    measure_sublayers,
    measure_wiring,
)
from addnorm.stacks.taps import Taps
from addnorm.sublayers.attention_options.shared_tensors import SharedTensors
from addnorm.wirings.base import Branch, Observer, State, Wiring
from addnorm.wirings.base import registry as wirings

Step = Callable[[Wiring, State, Site, Branch], State]


class Stack(nn.Module):
    """Arbitrary sub-layers joined by a wiring.

    `sublayers` is a flat list with `len(kinds)` sub-layers per layer. Any module from tensor to
    tensor can be one. The stack passes mask, memory, cache and other arguments of its call only to
    sub-layers whose `forward` names them. Weights are not changed before `init_weights()` is
    called. `roles` declares what weights of plain modules are for (`stacks/declared_roles.py`);
    the others are found by running the modules on random tokens. `scale` is a rule for other sizes
    than that of a base model (`addnorm list scales`).

    Masks are True at valid tokens. If the attribute `recompute` is True, activations inside
    sub-layers are recomputed in the backward instead of saved: less memory, same numbers. If
    `stream` is a dtype, the state between sites is cast to it.

    >>> mixers = [nn.Linear(8, 8) for _ in range(4)]
    >>> stack = Stack(mixers, dim=8, wiring="b2t", norm="rms")
    >>> stack(torch.randn(2, 5, 8)).shape
    torch.Size([2, 5, 8])
    """

    def __init__(
        self,
        sublayers: Sequence[nn.Module],
        *,
        dim: int,
        wiring: str = "pre_ln",
        norm: str = "layer",
        kinds: Sequence[str] = ("self", "ffn"),
        role: str = "encoder_only",
        other_depth: int | None = None,
        dropout: float = 0.0,
        roles: Mapping[str, Any] | None = None,
        scale: str | None = None,
    ) -> None:
        super().__init__()
        kinds = (kinds,) if isinstance(kinds, str) else _as_tuple("kinds", kinds, "names")
        sublayers = list(_as_tuple("sublayers", sublayers, "modules"))
        _check_sublayers(sublayers, kinds)
        if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
            raise UserError(f"dropout: expected a number from 0 to below 1, got {dropout!r}")
        self.wiring_call, norm_call = wirings.resolve(wiring), norms.resolve(norm)
        described = [as_sublayer(module) for module in sublayers]
        shapes = tuple(None if module is None else module.shape for module in described)
        for index, shape in enumerate(shapes):
            if shape is not None and shape.dim not in (0, dim):
                raise UserError(
                    f"sub-layer {index} ({type(described[index]).__name__}): expected dim={dim} as "
                    f"in the stack, got {shape.dim}"
                )
        self.scale_call = None if scale is None else scales.resolve(scale)
        self.scale_rule = None if self.scale_call is None else make_scale(self.scale_call)
        self.plan = Plan(
            role,
            len(sublayers) // len(kinds),
            other_depth,
            kinds,
            dim,
            norm_call,
            shapes,
            None if self.scale_rule is None else self.scale_rule.base_depth,
        )
        self.sublayers = nn.ModuleList(sublayers)
        self.wiring = wirings.make(self.wiring_call, self.plan)
        self.branch_multiplier = self._apply_scale()
        self.dropout = Dropout(dropout)
        self.taps = Taps(len(sublayers))
        self.recompute = False
        self.stream: torch.dtype | None = None
        self._roles = StackRoles(self.sublayers, self.plan, roles or {})
        self._signatures = [ForwardSignature.from_module(module) for module in sublayers]
        self._check_plugs()

    @property
    def arrangement(self) -> dict[str, Any]:
        """Options of the stack as plain data; `load_state_dict` rejects weights of other ones."""
        return {
            "wiring": str(self.wiring_call),
            "norm": str(self.plan.norm),
            "role": self.plan.role,
            "kinds": list(self.plan.kinds),
            **({"other_depth": self.plan.other_depth} if self.plan.other_depth else {}),
            **({} if self.scale_call is None else {"scale": str(self.scale_call)}),
        }

    def forward(
        self, x: Tensor, *, mask: Tensor | None = None, cond: Tensor | None = None, **context: Any
    ) -> Tensor:
        """Run the stack.

        Args:
            x: (B, L, dim) input tokens
            mask: (B, L), True at valid tokens
            cond: condition for norms that take one
            context: further arguments, such as memory or cache, for the sub-layers that name them;
                an argument that no sub-layer names raises a UserError
        """
        return self._run_sites(x, mask, cond, context, type(self.wiring).step)

    def calibrate(
        self, x: Tensor, *, mask: Tensor | None = None, cond: Tensor | None = None, **context: Any
    ) -> None:
        """Set the data-dependent start values of the wiring, if any (Admin), from one batch."""

        def run(observe: Observer) -> None:
            def observed_step(wiring: Wiring, state: State, site: Site, branch: Branch) -> State:
                h, state = wiring.read(state, site)
                returned = branch(h)
                valid = (
                    (*state, returned)
                    if mask is None
                    else tuple(leaf[mask] for leaf in (*state, returned))
                )
                observe(site, valid[:-1], valid[-1])
                return wiring.write(state, site, returned)

            self._run_sites(x, mask, cond, context, observed_step)

        with torch.no_grad():
            self.wiring.calibrate(run)

    def init_weights(self, *, scheme: str | None = None, seed: int | None = None) -> "Stack":
        """Initialize all weights for this wiring and reset norms and wiring; return the stack.

        Args:
            scheme: a key of `stacks.init.SCHEMES`; the wiring's own if None
            seed: seed of the draws, which then leave torch's generator unchanged
        """
        init.check_seed(seed)
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            init.reset_all_parameters(self)
            for site, sublayer in zip(self.plan.sites, self.sublayers, strict=True):
                for part in self._roles.iter_weights(site, sublayer):
                    factor, ratios = init_ratios(self.scale_rule, part, self.plan.dim)
                    init.init_weight_(
                        part.weight,
                        scheme=self.wiring.scheme if scheme is None else scheme,
                        role=part.role,
                        gain=self.wiring.gain(part.role, site) * part.gain * factor,
                        rows=part.rows,
                        ratios=ratios,
                    )
            self.after_step()
        return self

    def after_step(self) -> None:
        """Update the weights after an optimizer step; only some wirings need it (nGPT)."""
        with torch.no_grad():
            self.wiring.after_step(self.weights())

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (role, weight) of every sub-layer, in order; parts of fused weights as views."""
        for site, sublayer in zip(self.plan.sites, self.sublayers, strict=True):
            for part in self._roles.iter_weights(site, sublayer):
                yield part.role, part.weight

    def parameter_sizes(self, rule: Scale | None = None) -> dict[int, ParameterSize]:
        """Return what a scale must know about each parameter, by id.

        rule: the scale; the stack's own if None
        """
        rule = self.scale_rule if rule is None else rule
        parts = [
            part
            for site, sublayer in zip(self.plan.sites, self.sublayers, strict=True)
            for part in self._roles.iter_weights(site, sublayer)
        ]
        sizes = measure_wiring(self.wiring, self.plan, self.wiring_call, rule)
        inside = measure_sublayers(self.sublayers, parts, self.plan, rule)
        return measure_others(self) | sizes | inside

    def _apply_scale(self) -> float:
        """Give the wiring its factor of the scale; return the factor that remains for branches."""
        rule = self.scale_rule
        if rule is None or rule.depth_exponent is None:
            return 1.0
        factor = rule.residual_multiplier(self.plan.depth)
        return apply_residual_multiplier(self.wiring, factor, scale=self.scale_call)

    def no_decay(self) -> set[str]:
        """Return the names of parameters without weight decay: norms, scales, gates, biases."""
        small = {
            name
            for name, parameter in self.named_parameters()
            if sum(size > 1 for size in parameter.shape) < 2 and not name.startswith("wiring.")
        }
        return small | {f"wiring.{name}" for name in self.wiring.no_decay()}

    def get_extra_state(self) -> Tensor:
        """Return the arrangement as a tensor, which every weight format can store."""
        return encode_text(format_arrangement(self.arrangement))

    def set_extra_state(self, state: Any) -> None:
        """Raise an ArrangementMismatchError if the weights belong to another arrangement."""
        if isinstance(state, Tensor) and state.is_meta:
            return  # without values there is nothing to check
        is_readable = isinstance(state, Tensor) and state.ndim == 1 and state.numel() > 0
        theirs = decode_text(state) if is_readable else repr(state)
        ours = format_arrangement(self.arrangement)
        if theirs != ours:
            theirs = theirs if theirs.startswith("wiring=") else "no readable arrangement"
            raise ArrangementMismatchError(
                f"state_dict: expected weights of the arrangement [{ours}], got [{theirs}]; build "
                "the stack with the arrangement of the weights, or change that of the trained "
                "model with addnorm.rewire"
            )

    def _run_sites(
        self,
        x: Tensor,
        mask: Tensor | None,
        cond: Tensor | None,
        context: dict[str, Any],
        step: Step,
    ) -> Tensor:
        x, context = self._prepare_inputs(x, mask, cond, context)
        wiring = self.wiring.with_context(mask, cond)
        context = {"mask": mask, "cond": cond, **context}
        state = self._cast_state(wiring.open(x))
        shared = SharedTensors()
        run_step = self._tapped_step if self.taps.has_hooks else _plain_step
        for site, sublayer in zip(self.plan.sites, self.sublayers, strict=True):
            kwargs = self._sublayer_kwargs(site, wiring, context, shared)
            name = partial(self._describe_sublayer, site)
            branch = SublayerBranch(
                sublayer, kwargs, self.dropout, name, self.recompute, self.branch_multiplier
            )
            state = self._cast_state(run_step(wiring, state, site, branch, step))
        return wiring.close(state)

    def _cast_state(self, state: State) -> State:
        if self.stream is None:
            return state
        return tuple(x.to(self.stream) if x.is_floating_point() else x for x in state)

    @property
    def input_dim(self) -> int:
        """Number of features of the input."""
        return self.plan.dim

    def _prepare_inputs(
        self, x: Tensor, mask: Tensor | None, cond: Tensor | None, context: dict[str, Any]
    ) -> tuple[Tensor, dict[str, Any]]:
        """Validate the inputs; return what the wiring opens and the context of the sub-layers."""
        self._check(x, mask, cond, context)
        return x, context

    def _tapped_step(
        self, wiring: Wiring, state: State, site: Site, branch: SublayerBranch, step: Step
    ) -> State:
        """Run a step with taps; a hook on `skip` requires separate calls of read and write."""
        read, after, stream, skip = self.taps.get_site_taps(site)
        tapped = TappedBranch(branch, read, after)
        if skip.has_hooks:
            h, state = wiring.read(state, site)
            skip(wiring.trunk(state))
            state = wiring.write(state, site, tapped(h))
        else:
            state = step(wiring, state, site, tapped)
        if stream.has_hooks:
            stream(wiring.trunk(state))
        return state

    def _sublayer_kwargs(
        self, site: Site, wiring: Wiring, context: dict[str, Any], shared: SharedTensors
    ) -> dict[str, Any]:
        """Return the arguments of a site's sub-layer: its part of the context, and the plugs."""
        signature = self._signatures[site.index]
        kwargs = signature.select(context)
        if "cache" in kwargs:
            kwargs["cache"] = kwargs["cache"][site.index]
        if "plugs" in signature.names:
            kwargs["plugs"] = wiring.plugs(site)
        if "shared" in signature.names:
            kwargs["shared"] = shared
        return kwargs

    def _describe_sublayer(self, site: Site) -> str:
        module = type(self.sublayers[site.index]).__name__
        return f"sub-layer {site.index} ({module}, kind {site.kind!r})"

    def _check(
        self, x: Tensor, mask: Tensor | None, cond: Tensor | None, context: dict[str, Any]
    ) -> None:
        dim = self.input_dim
        check_tensor("x", x, f"a tensor (..., L, {dim})")
        if x.ndim < 2 or x.shape[-1] != dim or not x.is_floating_point():
            raise UserError(
                f"x: expected floating point of shape (..., L, {dim}), got {x.dtype} of "
                f"shape {tuple(x.shape)}"
            )
        check_mask(mask, x)
        norm_takes_cond = "cond" in norms.card(self.plan.norm.name).needs
        if (
            cond is not None
            and not norm_takes_cond
            and not any("cond" in signature for signature in self._signatures)
        ):
            raise UserError(
                f"cond: expected None, because norm {self.plan.norm} and all sub-layers take no "
                "condition; choose a norm such as ada_ln"
            )
        for name in context:
            if name in ("plugs", "shared") or not any(name in each for each in self._signatures):
                raise UserError(
                    f"{name}: expected an argument that a sub-layer names in its forward; no "
                    f"sub-layer of this stack takes {name!r}"
                )
        present = {"plugs", "shared", *(["mask"] if mask is not None else [])}
        present |= {name for name, value in context.items() if value is not None}
        for site, signature in zip(self.plan.sites, self._signatures, strict=True):
            for name in set(signature.required) - present:
                raise UserError(
                    f"{name}: required by {self._describe_sublayer(site)}; call the stack with "
                    f"{name}=..."
                )

    def _check_plugs(self) -> None:
        for site, module in zip(self.plan.sites, self.sublayers, strict=True):
            sublayer = as_sublayer(module)
            reason = sublayer and sublayer.find_plug_conflict(self.wiring.plugs(site))
            if reason:
                raise UserError(
                    f"{self._describe_sublayer(site)} conflicts with wiring {self.wiring_call}: "
                    f"{reason}"
                )


def _plain_step(
    wiring: Wiring, state: State, site: Site, branch: SublayerBranch, step: Step
) -> State:
    return step(wiring, state, site, branch)


def _as_tuple(name: str, values: Any, what: str) -> tuple[Any, ...]:
    if not isinstance(values, Iterable) or isinstance(values, str | Tensor):
        raise UserError(f"{name}: expected a list of {what}, got {type(values).__name__}")
    return tuple(values)


def _check_sublayers(sublayers: list[nn.Module], kinds: tuple[str, ...]) -> None:
    for index, module in enumerate(sublayers):
        if not isinstance(module, nn.Module):
            raise UserError(
                f"sub-layer {index}: expected a torch.nn.Module in one flat list, got {module!r}"
            )
    if not sublayers or not kinds or len(sublayers) % len(kinds):
        raise UserError(
            f"sublayers: expected a flat list with {len(kinds)} sub-layers per layer, {kinds}, and "
            f"at least one layer, got {len(sublayers)}"
        )
