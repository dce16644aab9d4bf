"""The probe: a forward beside the training, which leaves no trace, and what is seen in it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.plan import Site
from addnorm.core.rows import Row
from addnorm.measure.attention_entropy import attention_entropy
from addnorm.measure.max_logit import max_logit
from addnorm.measure.residual_dependency import dependency
from addnorm.measure.site_activations import Sight
from addnorm.measure.sites import place, stacks_of, unwrapped
from addnorm.measure.stream_variance import stream_variance
from addnorm.stacks.stack import Stack
from addnorm.sublayers.multihead import MultiHead

Question = Callable[[Sight], Tensor | None]
Visit = Callable[[str, Site, Sight], None]
Scalars = list[tuple[dict[str, Any], Tensor]]

QUESTIONS: dict[str, Question] = {
    "stream_variance": stream_variance,
    "dependency": dependency,
    "attention_entropy": attention_entropy,
    "max_logit": max_logit,
}
"""What is asked at every site of a forward: name of the row, and its formula."""


def forward_rows(model: nn.Module, *args: Any, **kwargs: Any) -> list[Row]:
    """The rows of one forward of a model, called with these arguments, in evaluation mode.

    >>> from addnorm.models import build
    >>> model = build(kind="lm", vocab=9, dim=8, depth=1, heads=2)
    >>> rows = forward_rows(model, torch.tensor([[1, 4, 5]]))
    >>> [(row["name"], row["site"]) for row in rows][:4]
    [('stream_variance', 0), ('dependency', 0), ('attention_entropy', 0), ('max_logit', 0)]
    """
    scalars = forward_scalars(model, *args, **kwargs)
    values = torch.stack([value for _, value in scalars]).tolist() if scalars else []
    return [{**row, "value": value} for (row, _), value in zip(scalars, values, strict=True)]


def forward_scalars(model: nn.Module, *args: Any, **kwargs: Any) -> Scalars:
    """As `forward_rows`, with the values still on their device.

    Where a stack is called several times in a forward, its last call counts.
    """
    found: dict[tuple[str, int], Scalars] = {}

    def visit(stack: str, site: Site, sight: Sight) -> None:
        answers = ((name, question(sight)) for name, question in QUESTIONS.items())
        found[stack, site.index] = [
            ({"name": name, "value": 0.0, **place(stack, site)}, answer)
            for name, answer in answers
            if answer is not None
        ]

    look(model, visit, *args, **kwargs)
    return [scalar for scalars in found.values() for scalar in scalars]


def look(model: nn.Module, visit: Visit, *args: Any, **kwargs: Any) -> None:
    """Run a model once in evaluation mode and show every site to `visit`.

    Weights, gradients, buffers, flags of training and random generators stay as they are. Of a
    compiled model the original runs, since hooks do not reach what is compiled.
    """
    model = unwrapped(model)
    with undisturbed(model), watched(stacks_of(model), visit):
        model(*args, **kwargs)


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; everything as it was afterwards."""
    flags = {module: module.training for module in model.modules()}
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(kept_generators(model))
        stack.enter_context(uncompiled())
        try:
            model.eval()
            yield
        finally:
            for module, training in flags.items():
                module.training = training
            _reshard(model)


@contextmanager
def kept_generators(model: nn.Module) -> Iterator[None]:
    """Whatever is drawn inside, random generators go on as if nothing had been."""
    devices = {parameter.device for parameter in model.parameters()}
    drawing = [device for device in devices if device.type not in ("cpu", "meta")]
    with torch.random.fork_rng(drawing, device_type=drawing[0].type if drawing else "cuda"):
        yield


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run as it is written whatever torch.compile was told; nothing is compiled anew."""
    if "torch._dynamo" not in sys.modules:  # nobody compiled, and to import it takes seconds
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def watched(stacks: dict[str, Stack], visit: Visit) -> Iterator[None]:
    """Show every site of every forward inside to `visit`, one after the other."""
    with ExitStack() as hooks:
        for name, stack in stacks.items():
            hooks.enter_context(_Watch(name, stack, visit).hooked())
        yield


class _Watch:
    """Gathers what passes the taps of a stack until a site is complete."""

    def __init__(self, name: str, stack: Stack, visit: Visit) -> None:
        self.name, self.stack, self.visit = name, stack, visit
        self.valid: Tensor | None = None
        self.seen: dict[str, list[Tensor]] = {}

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """While it looks."""
        stack, taps = self.stack, self.stack.taps
        with ExitStack() as hooks:
            entry = stack.register_forward_pre_hook(self._enter, with_kwargs=True)
            hooks.callback(entry.remove)
            for site, sublayer in zip(stack.plan.sites, stack.sublayers, strict=True):
                places = [(place, getattr(taps, place)[site.index]) for place in ("skip", "branch")]
                for module in sublayer.modules():
                    if isinstance(module, MultiHead):
                        places.append(("logits", module.logits_tap))
                        places.append(("probabilities", module.probabilities_tap))
                for place, tap in places:
                    hooks.callback(tap.register_forward_hook(self._keeper(place)).remove)
                stream = taps.stream[site.index]
                hooks.callback(stream.register_forward_hook(self._finisher(site)).remove)
            yield

    def _enter(self, _stack: nn.Module, _args: Any, kwargs: dict[str, Any]) -> None:
        self.valid, self.seen = kwargs.get("mask"), {}

    def _keeper(self, place: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def keep(_tap: nn.Module, _args: Any, output: Tensor) -> None:
            self.seen.setdefault(place, []).append(output)

        return keep

    def _finisher(self, site: Site) -> Callable[[nn.Module, Any, Tensor], None]:
        def finish(_tap: nn.Module, _args: Any, stream: Tensor) -> None:
            sight = Sight(
                before=self.seen["skip"][-1],
                branch=self.seen["branch"][-1],
                stream=stream,
                valid=self.valid,
                logits=tuple(self.seen.get("logits", ())),
                probabilities=tuple(self.seen.get("probabilities", ())),
            )
            self.seen = {}
            self.visit(self.name, site, sight)

        return finish


def _reshard(model: nn.Module) -> None:
    """Give back what a forward without backward gathered from other processes."""
    if "torch.distributed.fsdp" in sys.modules:
        from torch.distributed.fsdp import FSDPModule

        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
