"""Sources of sites for a monitor: where a model is measured, and which parameters belong there."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from torch import nn

from addnorm.measure.probe import Scalars, forward_scalars
from addnorm.measure.sites import find_stacks, site_fields, site_parameters


class SiteSource(Protocol):
    """Sites of a model: their metrics in a forward pass, and their parameters."""

    def measure(self, *args: Any, **kwargs: Any) -> Scalars:
        """Run the model in evaluation mode and return rows with their values as tensors."""

    def iter_parameters(self) -> Iterator[tuple[dict[str, Any], Iterable[nn.Parameter]]]:
        """Yield the row fields and the parameters of each site."""


class StackSites(SiteSource):
    """Sites of the stacks of an addnorm model, read through their taps."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.stacks = model, find_stacks(model)

    def measure(self, *args: Any, **kwargs: Any) -> Scalars:
        return forward_scalars(self.model, *args, **kwargs)

    def iter_parameters(self) -> Iterator[tuple[dict[str, Any], Iterable[nn.Parameter]]]:
        for name, stack in self.stacks.items():
            for site in stack.plan.sites:
                yield site_fields(name, site), site_parameters(stack, site)
