"""Base class of wirings that wrap another wiring."""

from collections.abc import Callable, Iterable

from torch import Tensor

from addnorm.core.plan import Plan, Plugs, Site
from addnorm.wirings.base import Observer, State, Wiring, make_wiring


class Decorator(Wiring):
    """Wiring that delegates everything to another one, its `inner`, unless overridden."""

    def __init__(self, plan: Plan, inner: str) -> None:
        super().__init__(plan)
        self.inner = make_wiring(inner, plan)
        self.scheme, self.num_state_tensors = self.inner.scheme, self.inner.num_state_tensors
        self.schedule, self.tokenwise = self.inner.schedule, self.inner.tokenwise
        self.ignores_branch_size = self.inner.ignores_branch_size
        self.multiplier_place = self.inner.multiplier_place

    def open(self, x: Tensor) -> State:
        return self.inner.open(x)

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return self.inner.read(state, site)

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        return self.inner.write(state, site, branch)

    def close(self, state: State) -> Tensor:
        return self.inner.close(state)

    def gain(self, role: str, site: Site | None = None) -> float:
        return self.inner.gain(role, site)

    def has_post_norm(self, site: Site) -> bool:
        return self.inner.has_post_norm(site)

    def plugs(self, site: Site) -> Plugs:
        return self.inner.plugs(site)

    def multiply_residual(self, factor: float) -> None:
        self.inner.multiply_residual(factor)

    def calibrate(self, run: Callable[[Observer], None]) -> None:
        self.inner.calibrate(run)

    def after_step(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        self.inner.after_step(weights)

    def trunk(self, state: State) -> Tensor:
        return self.inner.trunk(state)

    def no_decay(self) -> set[str]:
        inside = {f"inner.{name}" for name in self.inner.no_decay()}
        own = {name for name in super().no_decay() if not name.startswith("inner.")}
        return inside | own
