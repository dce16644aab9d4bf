"""Attention scores in a run of a module, found whatever is done with them afterwards.

Tokens are followed through the run: a result of an operation on them depends on them too. Where two
of these are combined, and the result has an axis of tokens for each, there is a number for every
pair of tokens: the attention scores.

    q @ k.mT                       (B, L, D) and (B, D, L) give (B, L, L)
    torch.tanh(q[:, :, None] + k[:, None])            additive attention, (B, L, L, D)

Scores without softmax (sigmoid, squared ReLU) and scores with positions are found as well.
"""

from collections.abc import Callable
from typing import Any

from torch import Size, Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

PRODUCTS = frozenset(
    ("matmul", "__matmul__", "__rmatmul__", "bmm", "mm", "baddbmm", "einsum", "tensordot", "inner")
)
OUTER_PRODUCTS = frozenset(("mul", "__mul__", "__rmul__", "multiply", "outer"))


class DetachScores(TorchFunctionMode):
    """Cuts the gradients of attention scores inside the block.

    Args:
        tokens: input of the module, (B, L, D)
        length: L, if no other axis of the module can have this size; None cuts nothing
    """

    def __init__(self, tokens: Tensor, length: int | None) -> None:
        super().__init__()
        self.length = length
        self.has_product = False
        """Whether two results that depend on tokens were multiplied, not feature by feature."""
        self._active = {id(tokens): tokens}  # keeps the tensors, so that no id is used twice

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        active = [
            each
            for each in tree_leaves((args, kwargs))
            if isinstance(each, Tensor) and id(each) in self._active
        ]
        if func is F.scaled_dot_product_attention:
            args = tuple(each.detach() if index < 2 else each for index, each in enumerate(args))
            kwargs |= {name: kwargs[name].detach() for name in ("query", "key") if name in kwargs}
        result = func(*args, **kwargs)
        if active:
            result = self._follow(result, func, [each.shape for each in active])
        return result

    def _follow(self, result: Any, func: Callable[..., Any], shapes: list[Size]) -> Any:
        """Return the result of an operation on operands that depend on tokens."""
        if isinstance(result, Tensor) and len(shapes) > 1:
            name = getattr(func, "__name__", "")
            is_product = name in PRODUCTS or (name in OUTER_PRODUCTS and result.shape not in shapes)
            self.has_product |= is_product or func is F.scaled_dot_product_attention
            if self._is_scores(result, shapes):
                result = result.detach()
        for each in tree_leaves(result):
            if isinstance(each, Tensor):
                self._active[id(each)] = each
        return result

    def _is_scores(self, result: Tensor, shapes: list[Size]) -> bool:
        """Return whether an operation gave its result the second axis of tokens."""
        if self.length is None or list(result.shape).count(self.length) < 2:
            return False
        return all(list(shape).count(self.length) < 2 for shape in shapes)
