"""Hooks on the steps of optimizers, which tell a monitor when weights are about to change."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from addnorm.core.errors import UserError
from addnorm.core.rows import Row


def unwrap_optimizers(optimizer: Any) -> list[Optimizer]:
    """Return the optimizers of torch behind an optimizer, a wrapper of it, or a list.

    Raises:
        UserError: it is none of these
    """
    if optimizer is None:
        return []
    if isinstance(optimizer, list | tuple):
        return [each for one in optimizer for each in unwrap_optimizers(one)]
    inner = getattr(optimizer, "optimizer", None)
    if isinstance(inner, Optimizer):  # accelerate's is a subclass that never initialized its base
        return unwrap_optimizers(inner)
    if isinstance(optimizer, Optimizer):
        return [optimizer]
    raise UserError(
        f"optimizer: expected a torch.optim.Optimizer, got {type(optimizer).__name__}; without "
        "one, call before_update and after_update"
    )


def shares_parameters(optimizers: Sequence[Optimizer], model: nn.Module) -> bool:
    """Return whether the optimizers update a parameter of the model."""
    own = {id(parameter) for parameter in model.parameters()}
    return any(
        id(parameter) in own
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    )


def read_learning_rate(step: int, optimizers: Sequence[Optimizer]) -> list[Row]:
    """Return the row of the first learning rate; none without an optimizer."""
    rates = [group.get("lr") for each in optimizers for group in each.param_groups]
    if not rates or rates[0] is None:
        return []
    return [{"step": step, "name": "lr", "value": float(rates[0]), "site": None}]


class StepHooks:
    """Hooks that run before the first and after the last step of the optimizers of an update.

    The update ends when every optimizer has stepped, in any order, or when one of them steps again.
    With a closure, which computes the gradients inside the step, `before` runs after the closure's
    first call. A step that `GradScaler` skips in a fused optimizer is not reported.

    Args:
        optimizers: the optimizers that make one update together
        before: function of the factor that the gradients were multiplied by
        after: function called after the update
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        before: Callable[[float | Tensor], None],
        after: Callable[[], None],
    ) -> None:
        self._before, self._after = before, after
        self._count = len({id(optimizer) for optimizer in optimizers})
        self._started: set[int] = set()
        """Optimizers that have started their step of the current update."""
        self._stepped: set[int] = set()
        self._is_skipped = False
        self._handles = [
            handle
            for optimizer in optimizers
            for handle in (
                optimizer.register_step_pre_hook(self._on_start),
                optimizer.register_step_post_hook(self._on_end),
            )
        ]

    def remove(self) -> None:
        """Detach from the optimizers, whose steps are then no longer counted."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _on_start(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        # A fused optimizer divides by the scale itself, and skips the step itself.
        scale = getattr(optimizer, "grad_scale", None)
        found = getattr(optimizer, "found_inf", None)
        self._is_skipped = isinstance(found, Tensor) and bool(found.any())
        if self._is_skipped:
            return None
        if id(optimizer) in self._started:
            if self._stepped:
                self._finish()
            self._started = set()  # a step that failed never ended
        is_first = not self._started
        self._started.add(id(optimizer))
        if not is_first:
            return None
        factor: float | Tensor = scale.detach() if isinstance(scale, Tensor) else 1.0
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        if callable(closure):
            wrapped = self._wrap(closure, factor)
            if len(args) > 1:
                return (args[0], wrapped, *args[2:]), kwargs
            return args, {**kwargs, "closure": wrapped}
        self._before(factor)
        return None

    def _wrap(self, closure: Callable[[], Any], factor: float | Tensor) -> Callable[[], Any]:
        calls = 0

        def wrapped() -> Any:
            nonlocal calls
            loss = closure()
            calls += 1
            if calls == 1:
                self._before(factor)
            return loss

        return wrapped

    def _on_end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._is_skipped:
            return
        self._stepped.add(id(optimizer))
        if len(self._stepped) == self._count:
            self._finish()

    def _finish(self) -> None:
        self._started, self._stepped = set(), set()
        self._after()
