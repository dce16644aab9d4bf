"""The stack: the one loop that calls the verbs of a wiring."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import ArrangementMismatchError, UserError
from addnorm.core.plan import Plan, Site
from addnorm.kernels.dropout import Dropout
from addnorm.norms.base import check_mask
from addnorm.norms.base import registry as norms
from addnorm.stacks import init
from addnorm.stacks.branch import SublayerBranch, TappedBranch
from addnorm.stacks.forward_signature import ForwardSignature, as_sublayer
from addnorm.stacks.taps import Taps
from addnorm.wirings.base import Branch, Observer, State, Wiring
from addnorm.wirings.base import registry as wirings

Step = Callable[[Wiring, State, Site, Branch], State]


class Stack(nn.Module):
    """Any sub-layers, joined by a wiring.

    `sublayers` is a flat list, `len(kinds)` of them a layer. A module from tensor to tensor is
    enough; one whose `forward` names mask, memory, cache or anything else that the stack is called
    with gets just that. Nobody's weights are touched before `initialise()` is called.

    Masks are True at valid tokens. With `recompute` set to True, what sub-layers compute inside is
    not kept for the backward but computed again: less memory, the same numbers. With `stream` set
    to a dtype, what the wiring hands on from site to site has it, whatever comes in.

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
    ) -> None:
        super().__init__()
        kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
        sublayers = list(sublayers)
        _check_sublayers(sublayers, kinds)
        if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
            raise UserError(f"dropout is a share from 0 to below 1, got {dropout!r}")
        self.wiring_call, norm_call = wirings.resolve(wiring), norms.resolve(norm)
        known = [as_sublayer(module) for module in sublayers]
        shapes = tuple(None if module is None else module.shape for module in known)
        for index, shape in enumerate(shapes):
            if shape is not None and shape.dim not in (0, dim):
                raise UserError(
                    f"sub-layer {index} ({type(known[index]).__name__}) was made for a stream of "
                    f"{shape.dim} features, this stack has dim={dim}; make them equal"
                )
        self.plan = Plan(
            role, len(sublayers) // len(kinds), other_depth, kinds, dim, norm_call, shapes
        )
        self.sublayers = nn.ModuleList(sublayers)
        self.wiring = wirings.make(self.wiring_call, self.plan)
        self.dropout = Dropout(dropout)
        self.taps = Taps(len(sublayers))
        self.recompute = False
        self.stream: torch.dtype | None = None
        self._signatures = [ForwardSignature.from_module(module) for module in sublayers]
        self._check_plugs()

    @property
    def arrangement(self) -> dict[str, Any]:
        """What was chosen, as plain data; `load_state_dict` refuses weights of another."""
        return {
            "wiring": str(self.wiring_call),
            "norm": str(self.plan.norm),
            "role": self.plan.role,
            "kinds": list(self.plan.kinds),
            **({"other_depth": self.plan.other_depth} if self.plan.other_depth else {}),
        }

    def forward(
        self, x: Tensor, *, mask: Tensor | None = None, cond: Tensor | None = None, **context: Any
    ) -> Tensor:
        """Run the stack on `x`, (B, L, dim).

        mask: (B, L), True at valid tokens. cond: condition for norms that take one. All else, such
        as memory or cache, goes to the sub-layers that name it; what nobody names is refused.
        """
        return self._run_sites(x, mask, cond, context, type(self.wiring).step)

    def calibrate(
        self, x: Tensor, *, mask: Tensor | None = None, cond: Tensor | None = None, **context: Any
    ) -> None:
        """Give the wiring its data-dependent start from one batch, where it has one (Admin)."""

        def run(observe: Observer) -> None:
            def watched(wiring: Wiring, state: State, site: Site, branch: Branch) -> State:
                h, state = wiring.read(state, site)
                returned = branch(h)
                valid = (
                    (*state, returned)
                    if mask is None
                    else tuple(leaf[mask] for leaf in (*state, returned))
                )
                observe(site, valid[:-1], valid[-1])
                return wiring.write(state, site, returned)

            self._run_sites(x, mask, cond, context, watched)

        with torch.no_grad():
            self.wiring.calibrate(run)

    def init_weights(self, *, scheme: str | None = None, seed: int | None = None) -> "Stack":
        """Start anew: norms and wiring at their start values, weights of the sub-layers drawn for
        this wiring.

        scheme: a row of the table in `stacks/init.py`; the wiring's own if None. seed: leaves
            torch's generator as it was.
        """
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            init.reset_all_parameters(self)
            for site, sublayer in zip(self.plan.sites, self.sublayers, strict=True):
                for role, weight in init.iter_weight_roles(sublayer, site.kind):
                    init.init_weight_(
                        weight,
                        scheme=scheme or self.wiring.scheme,
                        role=role,
                        gain=self.wiring.gain(role, site),
                    )
            self.after_step()
        return self

    def after_step(self) -> None:
        """To be called after every step of the optimizer; only some wirings do anything (nGPT)."""
        with torch.no_grad():
            self.wiring.after_step(self.weights())

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """(role, weight) of every sub-layer, in order."""
        for site, sublayer in zip(self.plan.sites, self.sublayers, strict=True):
            yield from init.iter_weight_roles(sublayer, site.kind)

    def no_decay(self) -> set[str]:
        """Parameters that weight decay must leave alone: norms, scales, gates, biases."""
        small = {
            name
            for name, parameter in self.named_parameters()
            if sum(size > 1 for size in parameter.shape) < 2 and not name.startswith("wiring.")
        }
        return small | {f"wiring.{name}" for name in self.wiring.no_decay()}

    def get_extra_state(self) -> Tensor:
        """The arrangement as bytes in a tensor, so that every format of weights can hold it."""
        return torch.tensor(list(_format_arrangement(self.arrangement).encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Refuse weights of another arrangement."""
        theirs, ours = bytes(state.tolist()).decode(), _format_arrangement(self.arrangement)
        if theirs != ours:
            raise ArrangementMismatchError(
                f"these weights belong to another arrangement: [{theirs}], this stack is [{ours}]; "
                "build the stack as the weights want it"
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
        context = {"mask": mask, "cond": cond} | context
        state = self._cast_state(wiring.open(x))
        walk = self._tapped_step if self.taps.has_hooks else _plain_step
        for site, sublayer in zip(self.plan.sites, self.sublayers, strict=True):
            given = self._sublayer_kwargs(site, wiring, context)
            name = partial(self._describe_sublayer, site)
            branch = SublayerBranch(sublayer, given, self.dropout, name, self.recompute)
            state = self._cast_state(walk(wiring, state, site, branch, step))
        return wiring.close(state)

    def _cast_state(self, state: State) -> State:
        if self.stream is None:
            return state
        return tuple(x.to(self.stream) if x.is_floating_point() else x for x in state)

    def _prepare_inputs(
        self, x: Tensor, mask: Tensor | None, cond: Tensor | None, context: dict[str, Any]
    ) -> tuple[Tensor, dict[str, Any]]:
        """What the wiring opens and the sub-layers may want; refused here if it makes no sense."""
        self._check(x, mask, cond, context)
        return x, context

    def _tapped_step(
        self, wiring: Wiring, state: State, site: Site, branch: SublayerBranch, step: Step
    ) -> State:
        """A step with all its taps; in the verbs, where somebody looks between read and write."""
        read, after, stream, skip = self.taps.get_site_taps(site)
        seen = TappedBranch(branch, read, after)
        if skip.has_hooks:
            h, state = wiring.read(state, site)
            skip(wiring.trunk(state))
            state = wiring.write(state, site, seen(h))
        else:
            state = step(wiring, state, site, seen)
        if stream.has_hooks:
            stream(wiring.trunk(state))
        return state

    def _sublayer_kwargs(
        self, site: Site, wiring: Wiring, context: dict[str, Any]
    ) -> dict[str, Any]:
        """What the sub-layer of a site gets of the context, and the wiring's plugs."""
        wants = self._signatures[site.index]
        given = wants.select(context)
        if "cache" in given:
            given["cache"] = given["cache"][site.index]
        if "plugs" in wants.names:
            given["plugs"] = wiring.plugs(site)
        return given

    def _describe_sublayer(self, site: Site) -> str:
        module = type(self.sublayers[site.index]).__name__
        return f"sub-layer {site.index} ({module}, kind {site.kind!r})"

    def _check(
        self, x: Tensor, mask: Tensor | None, cond: Tensor | None, context: dict[str, Any]
    ) -> None:
        if not isinstance(x, Tensor):
            raise UserError(f"wanted a tensor (..., L, {self.plan.dim}), got {type(x).__name__}")
        if x.ndim < 2 or x.shape[-1] != self.plan.dim or not x.is_floating_point():
            raise UserError(
                f"wanted floating point of shape (..., L, {self.plan.dim}), got {x.dtype} of "
                f"shape {tuple(x.shape)}"
            )
        check_mask(mask, x)
        heard = "cond" in norms.card(self.plan.norm.name).needs
        if (
            cond is not None
            and not heard
            and not any("cond" in wants for wants in self._signatures)
        ):
            raise UserError(
                f"nothing in this stack takes a condition: norm {self.plan.norm} has no use for it;"
                " leave cond out, or choose a norm such as ada_ln"
            )
        for name in context:
            if name == "plugs" or not any(name in wants for wants in self._signatures):
                raise UserError(
                    f"no sub-layer of this stack takes {name!r}; a sub-layer that wants it "
                    "names it in its forward"
                )
        given = {"plugs", *(["mask"] if mask is not None else [])}
        given |= {name for name, value in context.items() if value is not None}
        for site, wants in zip(self.plan.sites, self._signatures, strict=True):
            for name in set(wants.required) - given:
                raise UserError(
                    f"{self._describe_sublayer(site)} needs {name!r}: call the stack with {name}=..."
                )

    def _check_plugs(self) -> None:
        for site, module in zip(self.plan.sites, self.sublayers, strict=True):
            sublayer = as_sublayer(module)
            reason = sublayer and sublayer.find_plug_conflict(self.wiring.plugs(site))
            if reason:
                raise UserError(
                    f"{self._describe_sublayer(site)} cannot stand in wiring {self.wiring_call}: {reason}"
                )


def _plain_step(
    wiring: Wiring, state: State, site: Site, branch: SublayerBranch, step: Step
) -> State:
    """A step where nobody looks."""
    return step(wiring, state, site, branch)


def _check_sublayers(sublayers: list[nn.Module], kinds: tuple[str, ...]) -> None:
    for index, module in enumerate(sublayers):
        if not isinstance(module, nn.Module):
            raise UserError(
                f"sub-layer {index} is {module!r}; wanted torch.nn.Module, in one flat list"
            )
    if not sublayers or not kinds or len(sublayers) % len(kinds):
        raise UserError(
            f"got {len(sublayers)} sub-layers for layers of {len(kinds)}, {kinds}; "
            "wanted a flat list with that many a layer, at least one layer"
        )


def _format_arrangement(arrangement: dict[str, Any]) -> str:
    return " ".join(
        f"{key}={','.join(value) if isinstance(value, list) else value}"
        for key, value in arrangement.items()
    )
