"""Taps: named points of a stack where hooks observe or replace tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from torch import Tensor, nn

from addnorm.core.plan import Site
from addnorm.sublayers.base import Tap as Tap

TapRecording = dict[str, list[Tensor]]

TAP_POINTS = ("read", "branch", "stream")


class Taps(nn.Module):
    """Four taps for every site.

    read: input of the sub-layer
    branch: its output, after dropout
    stream: the trunk after the write
    skip: the trunk before the write; with a hook here, the stack calls the wiring's `read` and
        `write` instead of its fused `step`

    A hook on `read` or `branch` may return another tensor, which is then used. Hooks on `stream`
    and `skip` can only observe.
    """

    def __init__(self, sites: int) -> None:
        super().__init__()
        self.read = nn.ModuleList(Tap() for _ in range(sites))
        self.branch = nn.ModuleList(Tap() for _ in range(sites))
        self.stream = nn.ModuleList(Tap() for _ in range(sites))
        self.skip = nn.ModuleList(Tap() for _ in range(sites))

    @property
    def has_hooks(self) -> bool:
        """Whether any tap has a hook."""
        return any(tap.has_hooks for place in self.children() for tap in cast("list[Tap]", place))

    def get_site_taps(self, site: Site) -> tuple[Tap, Tap, Tap, Tap]:
        """Return the taps read, branch, stream and skip of a site."""
        places = (self.read, self.branch, self.stream, self.skip)
        read, branch, stream, skip = (cast(Tap, place[site.index]) for place in places)
        return read, branch, stream, skip

    @contextmanager
    def record(self) -> Iterator[TapRecording]:
        """Record the tensors at read, branch and stream, in the order of the sites.

        >>> import torch, addnorm
        >>> stack = addnorm.Stack([nn.Tanh(), nn.Tanh()], dim=4)
        >>> with stack.taps.record() as tape:
        ...     y = stack(torch.randn(1, 3, 4))
        >>> [len(tape[place]) for place in ("read", "branch", "stream")]
        [2, 2, 2]
        """
        tape: TapRecording = {place: [] for place in TAP_POINTS}
        hooks = [
            tap.register_forward_hook(
                lambda _tap, _inputs, output, place=place: tape[place].append(output)
            )
            for place in TAP_POINTS
            for tap in getattr(self, place)
        ]
        try:
            yield tape
        finally:
            for hook in hooks:
                hook.remove()
