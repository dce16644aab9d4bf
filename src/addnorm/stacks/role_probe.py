"""Roles of the weights of a module, measured by running it on random tokens.

The rows of a weight (its output features) are told apart by gradients of the module's output:

- Queries and keys only decide how the values of different tokens are mixed. If all tokens of a
  sequence are equal, the mixture is the same whatever the queries and keys are, so the gradient of
  their rows vanishes.
- A token's output depends on its own query and on the keys of all tokens. For one output token, the
  gradient of a query row is a multiple of that token's input, whichever output features are taken;
  that of a key row is not.
- The last matrix computes each output feature in a row of its own: no other row has a gradient.

Neither names nor the order of the code matter, and the parts of a fused weight are found row by
row. The module runs with random weights in place of its own, which are not changed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from addnorm.stacks.forward_signature import ForwardSignature, unwrap_compiled

BATCH, LENGTH = 32, 6  # a ReLU is closed for all of 32 random sequences once in 4e9 times
MAX_LENGTH = 4096
NUM_PAIRS = 4  # attention to two tokens alone can make the gradients of a key row parallel once
VANISHING = 1e-3  # relative size of a gradient that is rounding error
DOMINANT = 4.0  # ratio of the own row to the median of the others, with a norm after the matrix
PARALLEL = 0.999  # cosine of gradients with the same direction


class ProbeError(Exception):
    """The module could not be run on random tokens."""


@dataclass(frozen=True)
class RowRoles:
    """What the output features of one weight are used for."""

    rows: tuple[str, ...]
    """query, key, inner, out or unused, for each output feature."""
    transposed: bool
    """Whether output features are the columns, as in Hugging Face's Conv1D."""


def probe_roles(module: nn.Module, names: Sequence[str], *, dim: int) -> dict[str, RowRoles]:
    """Return the roles of the rows of weights.

    Args:
        module: sub-layer from (B, L, dim) to the same shape
        names: names of the weights, each with two or more axes
        dim: features of the stream

    Raises:
        ProbeError: the module does not run on tokens (B, L, dim)
    """
    module = unwrap_compiled(module)
    weights = [dict(module.named_parameters())[name] for name in names]
    sizes = {size for weight in weights for size in weight.shape}  # a token mixer has one length
    lengths = [LENGTH, *sorted(size for size in sizes - {LENGTH} if size <= MAX_LENGTH)]
    problem = ProbeError("it has no weights")
    for length in lengths:
        try:
            return _Probe(module, names, dim, length).find_roles()
        except Exception as error:  # whatever the code of a user raises
            problem = problem if problem.__cause__ else _describe(error)
    raise problem


class _Probe:
    """One module with random weights and tokens of one length."""

    def __init__(self, module: nn.Module, names: Sequence[str], dim: int, length: int) -> None:
        self.module, self.names, self.dim, self.length = module, names, dim, length
        self.generator = torch.Generator().manual_seed(0)
        first = next(module.parameters())
        self.device = first.device
        self.tensors = {
            name: self._draw_weight(name, parameter)
            for name, parameter in module.named_parameters()
        }
        self.leaves = [self.tensors[name].requires_grad_() for name in names]
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        self.tensors |= {
            name: buffer.float() if buffer.dtype in (torch.float16, torch.bfloat16) else buffer
            for name, buffer in buffers.items()
        }

    def find_roles(self) -> dict[str, RowRoles]:
        tokens = self._draw(BATCH, self.length, self.dim)
        varied = self._run(tokens)
        factors = self._draw(*varied.shape)
        total = self._gradients(varied, factors)
        features = range(min(3, self.dim))
        by_feature = [self._gradients(varied[..., i], factors[..., i]) for i in features]
        places = range(min(3, self.length))
        by_place = [self._gradients(varied[:, i], factors[:, i]) for i in places]
        last = [
            [self._gradients(varied[i, -1], self._draw(self.dim)) for _ in range(2)]
            for i in range(NUM_PAIRS)
        ]
        equal_tokens = tokens[:, :1].repeat(1, self.length, 1)
        equal = self._gradients(self._run(equal_tokens), factors)
        return {
            name: _classify_rows(
                total[index],
                equal[index],
                [(one[index], other[index]) for one, other in last],
                {
                    self.dim: [each[index] for each in by_feature],
                    self.length: [each[index] for each in by_place],
                },
            )
            for index, name in enumerate(self.names)
        }

    def _run(self, x: Tensor) -> Tensor:
        signature = ForwardSignature.from_module(self.module)
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=self.device)
        known = {"mask": mask, "memory": x, "memory_mask": mask}
        unknown = [name for name in signature.required if name not in known]
        if unknown:
            raise ProbeError(f"its forward requires {unknown[0]!r}")
        kwargs = {name: known[name] for name in signature.required}
        with _evaluation(self.module), torch.random.fork_rng(), torch.enable_grad():
            y = functional_call(self.module, self.tensors, (x,), kwargs)
        if not isinstance(y, Tensor) or y.shape != x.shape:
            raise ProbeError("its output does not have the shape of its input")
        if not y.isfinite().all():
            raise ProbeError("its output is not finite")
        return y

    def _gradients(self, y: Tensor, factors: Tensor) -> list[Tensor]:
        grads = torch.autograd.grad(
            (y * factors).sum(), self.leaves, retain_graph=True, allow_unused=True
        )
        return [
            torch.zeros_like(leaf) if grad is None else grad
            for leaf, grad in zip(self.leaves, grads, strict=True)
        ]

    def _draw(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).to(self.device)

    def _draw_weight(self, name: str, parameter: Tensor) -> Tensor:
        """Return random values: matrices keep the size of tokens, gains and gates are near 1."""
        noise = self._draw(*parameter.shape)
        if parameter.ndim >= 2:
            return noise / parameter[0].numel() ** 0.5
        return 0.1 * noise if name.endswith("bias") else 1 + 0.1 * noise


def _classify_rows(
    total: Tensor,
    equal: Tensor,
    last: list[tuple[Tensor, Tensor]],
    by_output: dict[int, list[Tensor]],
) -> RowRoles:
    """Return the roles of the rows of one weight from its gradients.

    Args:
        total: gradient of the whole output
        equal: gradient of the output of sequences of equal tokens
        last: pairs of gradients of one output token, for two combinations of its features
        by_output: gradients of single output features and of single output tokens, by their number
    """
    for axis, size in enumerate(total.shape):
        if size > 1 and size in by_output and _is_output(by_output[size], axis):
            is_transposed = axis == 1 and total.ndim == 2
            return RowRoles(("out",) * (size if is_transposed else len(total)), is_transposed)
    if not total.any():
        return RowRoles(("unused",) * len(total), False)
    for axis in (0, 1) if total.ndim == 2 else (0,):
        norms = _row_norms(total, axis)
        used = norms > VANISHING**2 * norms.max()
        mixing = used & (_row_norms(equal, axis) < VANISHING * norms)
        if not mixing.any():
            continue
        is_query = torch.stack([_are_parallel(*pair, axis) for pair in last]).all(0)
        rows = [
            ("query" if query else "key") if mixes else "inner"
            for mixes, query in zip(mixing.tolist(), is_query.tolist(), strict=True)
        ]
        return RowRoles(tuple(rows), axis == 1)
    return RowRoles(("inner",) * len(total), False)


def _are_parallel(one: Tensor, other: Tensor, axis: int) -> Tensor:
    """Return, for each row, whether two gradients have the same direction."""
    one, other = (grad.movedim(axis, 0).flatten(1) for grad in (one, other))
    return torch.cosine_similarity(one, other, dim=1, eps=0.0).nan_to_num().abs() > PARALLEL


def _is_output(grads: list[Tensor], axis: int) -> bool:
    """Return whether each of the first outputs has its gradient in the row of the same number."""
    for index, grad in enumerate(grads):
        norms = _row_norms(grad, axis)
        own, others = norms[index], torch.cat((norms[:index], norms[index + 1 :]))
        if own == 0 or (len(others) and own < DOMINANT * others.median()):
            return False
    return bool(grads)


def _row_norms(grad: Tensor, axis: int) -> Tensor:
    return grad.movedim(axis, 0).flatten(1).norm(dim=1)


def _describe(error: Exception) -> ProbeError:
    if isinstance(error, ProbeError):
        return error
    problem = ProbeError(f"{type(error).__name__}: {error}"[:200])
    problem.__cause__ = error
    return problem


@contextmanager
def _evaluation(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode inside the block."""
    training = [each for each in module.modules() if each.training]
    module.eval()
    try:
        yield
    finally:
        for each in training:
            each.training = True
