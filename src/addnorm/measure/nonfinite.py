"""Where did the first NaN arise?"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.plan import Site
from addnorm.measure.probe import kept_generators, uncompiled
from addnorm.measure.sharded_norms import local
from addnorm.measure.sites import parameters_of, place, spell, stacks_of, unwrapped
from addnorm.stacks.taps import PLACES

Key = tuple[str, int, str]


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
    where: str
    """read, branch or stream of a site, `parameters` of its sub-layer, `wiring` for parameters of
    the wiring that are its; `input` of a stack; `loss`, for all that is behind the stacks; or
    `outside`, for parameters that belong to no site."""

    @property
    def place(self) -> dict[str, Any]:
        """Where, as a row names it."""
        known = {} if self.stack is None else {"stack": self.stack}
        known = known if self.stack is None or self.site is None else place(self.stack, self.site)
        return {"place": self.where, "pass": "backward" if self.backward else "forward", **known}

    @property
    def sentence(self) -> str:
        """For people."""
        number = "NaN" if math.isnan(self.value) else "Inf"
        what = f"the first {number}" + (" of the gradients" if self.backward else "")
        if self.stack is not None and self.site is not None:
            return f"{what} arose in {spell(self.stack, self.site)} ({self.where})"
        if self.stack is not None:
            return f"{what} arose before the {self.stack} (its input)"
        places = {"loss": "behind the last stack (head or loss)"}
        return f"{what} arose {places.get(self.where, 'outside of all sites')}"


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
    model = unwrapped(model)
    gradients: dict[Key, float] = {}
    forward: list[Nonfinite] = []
    with (
        kept_generators(model),
        _kept_buffers(model),
        uncompiled(),
        _watched(model, forward, gradients),
    ):
        loss = run_forward()
        if (value := _worst(loss)) is not None:
            forward.append(
                Nonfinite(value=value, backward=False, stack=None, site=None, where="loss")
            )
        backward = None
        if loss.requires_grad:
            # Also if it is known already: other processes may wait for this one.
            with _kept_gradients(model):
                run_backward(loss)
                backward = _first_of(model, gradients)
    return forward[0] if forward else backward


@contextmanager
def _watched(
    model: nn.Module, forward: list[Nonfinite], gradients: dict[Key, float]
) -> Iterator[None]:
    def hook(name: str, site: Site | None, where: str) -> Callable[..., None]:
        def look(_module: nn.Module, args: Any, output: Any = None) -> None:
            x = args[0] if site is None else output
            if (value := _worst(x)) is not None:
                forward.append(
                    Nonfinite(value=value, backward=False, stack=name, site=site, where=where)
                )
            elif x.requires_grad:
                key = (name, -1 if site is None else site.index, where)
                x.register_hook(lambda grad: _note(gradients, key, grad))

        return look

    with ExitStack() as hooks:
        for name, stack in stacks_of(model).items():
            entry = stack.register_forward_pre_hook(hook(name, None, "input"))
            hooks.callback(entry.remove)
            for site in stack.plan.sites:
                for where in PLACES:
                    tap = getattr(stack.taps, where)[site.index]
                    hooks.callback(tap.register_forward_hook(hook(name, site, where)).remove)
        yield


@contextmanager
def _kept_buffers(model: nn.Module) -> Iterator[None]:
    """Running statistics of norms, which a forward in training moves."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)


@contextmanager
def _kept_gradients(model: nn.Module) -> Iterator[None]:
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in kept:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, grad in kept:
            parameter.grad = grad


def _note(gradients: dict[Key, float], key: Key, grad: Tensor) -> None:
    if (value := _worst(grad)) is not None:
        gradients[key] = value


def _first_of(model: nn.Module, gradients: dict[Key, float]) -> Nonfinite | None:
    """The first in the order of a backward pass."""
    wrong = {
        id(parameter): value
        for parameter in model.parameters()
        if parameter.grad is not None and (value := _worst(parameter.grad)) is not None
    }
    for name, stack in reversed(stacks_of(model).items()):
        for site in reversed(stack.plan.sites):
            inside = {id(each) for each in stack.sublayers[site.index].parameters()}
            own = [id(each) for each in parameters_of(stack, site) if id(each) in wrong]
            found = {place: gradients.get((name, site.index, place)) for place in PLACES}
            found["parameters"] = next((wrong[each] for each in own if each in inside), None)
            found["wiring"] = next((wrong[each] for each in own if each not in inside), None)
            for where in ("stream", "branch", "parameters", "read", "wiring"):
                if (value := found[where]) is not None:
                    return Nonfinite(value=value, backward=True, stack=name, site=site, where=where)
    for value in wrong.values():
        return Nonfinite(value=value, backward=True, stack=None, site=None, where="outside")
    return None


def _worst(x: Tensor) -> float | None:
    """What in a tensor is not finite: nan before inf; None if all is."""
    x = local(x.detach())
    if bool(torch.isfinite(x).all()):
        return None
    if bool(torch.isnan(x).any()):
        return math.nan
    return math.inf if bool((x == math.inf).any()) else -math.inf
