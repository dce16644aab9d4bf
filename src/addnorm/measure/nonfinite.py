"""Where did the first NaN arise?"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.plan import Site
from addnorm.measure.probe import compile_disabled, preserve_rng
from addnorm.measure.sharded_norms import local_shard
from addnorm.measure.sites import (
    describe_site,
    find_stacks,
    site_fields,
    site_parameters,
    unwrap_model,
)
from addnorm.stacks.taps import TAP_POINTS

GradientKey = tuple[str, int, str]


@dataclass(frozen=True, kw_only=True)
class Nonfinite:
    """The first number that is none."""

    value: float
    """nan, inf or -inf."""
    backward: bool
    """Whether the forward was finite, and the gradients were not."""
    stack: str | None
    """The stack in which it arose; None if outside of all."""
    site: Site | None
    """The site at which it arose; None if before the first or behind the last."""
    component: str
    """read, branch or stream of a site, `parameters` of its sub-layer, `wiring` for parameters of
    the wiring that are its; `input` of a stack; `loss`, for all that is behind the stacks; or
    `outside`, for parameters that belong to no site."""

    @property
    def location(self) -> dict[str, Any]:
        """Where, as a row names it."""
        known = {} if self.stack is None else {"stack": self.stack}
        known = (
            known if self.stack is None or self.site is None else site_fields(self.stack, self.site)
        )
        return {
            "place": self.component,
            "pass": "backward" if self.backward else "forward",
            **known,
        }

    @property
    def message(self) -> str:
        """For people."""
        number = "NaN" if math.isnan(self.value) else "Inf"
        what = f"the first {number}" + (" of the gradients" if self.backward else "")
        if self.stack is not None and self.site is not None:
            return f"{what} arose in {describe_site(self.stack, self.site)} ({self.component})"
        if self.stack is not None:
            return f"{what} arose before the {self.stack} (its input)"
        places = {"loss": "behind the last stack (head or loss)"}
        return f"{what} arose {places.get(self.component, 'outside of all sites')}"


def first_nonfinite(
    model: nn.Module,
    run_forward: Callable[[], Tensor],
    run_backward: Callable[[Tensor], Any] = Tensor.backward,
) -> Nonfinite | None:
    """The place at which the first NaN or Inf arises in a step; None if there is none.

    run_forward: calls the model as training does and returns the loss
    run_backward: gets that loss; the gradients tell if the forward is finite

    In the forward the places are compared in order of time; in the backward from the last site to
    the first, at each of them the gradients of stream, branch, parameters, read, wiring. Gradients,
    buffers and random generators are left as they were; put the generators back to where they stood
    at the failed step, and the same numbers are dropped. Of a compiled model the original runs.
    Under several processes all must call it; each tells what it found.
    """
    model = unwrap_model(model)
    gradients: dict[GradientKey, float] = {}
    forward: list[Nonfinite] = []
    with (
        preserve_rng(model),
        _preserve_buffers(model),
        compile_disabled(),
        _record_nonfinite(model, forward, gradients),
    ):
        loss = run_forward()
        if (value := _find_nonfinite_value(loss)) is not None:
            forward.append(
                Nonfinite(value=value, backward=False, stack=None, site=None, component="loss")
            )
        backward = None
        if loss.requires_grad:
            # Also if it is known already: other processes may wait for this one.
            with _preserve_gradients(model):
                run_backward(loss)
                backward = _find_first_in_backward(model, gradients)
    return forward[0] if forward else backward


@contextmanager
def _record_nonfinite(
    model: nn.Module, forward: list[Nonfinite], gradients: dict[GradientKey, float]
) -> Iterator[None]:
    def hook(name: str, site: Site | None, where: str) -> Callable[..., None]:
        def look(_module: nn.Module, args: Any, output: Any = None) -> None:
            x = args[0] if site is None else output
            if (value := _find_nonfinite_value(x)) is not None:
                forward.append(
                    Nonfinite(value=value, backward=False, stack=name, site=site, component=where)
                )
            elif x.requires_grad:
                key = (name, -1 if site is None else site.index, where)
                x.register_hook(lambda grad: _record_gradient(gradients, key, grad))

        return look

    with ExitStack() as hooks:
        for name, stack in find_stacks(model).items():
            entry = stack.register_forward_pre_hook(hook(name, None, "input"))
            hooks.callback(entry.remove)
            for site in stack.plan.sites:
                for where in TAP_POINTS:
                    tap = getattr(stack.taps, where)[site.index]
                    hooks.callback(tap.register_forward_hook(hook(name, site, where)).remove)
        yield


@contextmanager
def _preserve_buffers(model: nn.Module) -> Iterator[None]:
    """Running statistics of norms, which a forward in training moves."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)


@contextmanager
def _preserve_gradients(model: nn.Module) -> Iterator[None]:
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in kept:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, grad in kept:
            parameter.grad = grad


def _record_gradient(gradients: dict[GradientKey, float], key: GradientKey, grad: Tensor) -> None:
    if (value := _find_nonfinite_value(grad)) is not None:
        gradients[key] = value


def _find_first_in_backward(
    model: nn.Module, gradients: dict[GradientKey, float]
) -> Nonfinite | None:
    """The first in the order of a backward pass."""
    wrong = {
        id(parameter): value
        for parameter in model.parameters()
        if parameter.grad is not None
        and (value := _find_nonfinite_value(parameter.grad)) is not None
    }
    for name, stack in reversed(find_stacks(model).items()):
        for site in reversed(stack.plan.sites):
            inside = {id(each) for each in stack.sublayers[site.index].parameters()}
            own = [id(each) for each in site_parameters(stack, site) if id(each) in wrong]
            found = {place: gradients.get((name, site.index, place)) for place in TAP_POINTS}
            found["parameters"] = next((wrong[each] for each in own if each in inside), None)
            found["wiring"] = next((wrong[each] for each in own if each not in inside), None)
            for where in ("stream", "branch", "parameters", "read", "wiring"):
                if (value := found[where]) is not None:
                    return Nonfinite(
                        value=value, backward=True, stack=name, site=site, component=where
                    )
    for value in wrong.values():
        return Nonfinite(value=value, backward=True, stack=None, site=None, component="outside")
    return None


def _find_nonfinite_value(x: Tensor) -> float | None:
    """What in a tensor is not finite: nan before inf; None if all is."""
    x = local_shard(x.detach())
    if bool(torch.isfinite(x).all()):
        return None
    if bool(torch.isnan(x).any()):
        return math.nan
    return math.inf if bool((x == math.inf).any()) else -math.inf
