"""Roles of the weights of a module, measured by running it on random tokens.

The rows of a weight (its output features) are distinguished by gradients of the module's output:

- Queries and keys only decide how the values of different tokens are mixed. Their gradient vanishes
  if the attention scores are detached (`token_products.py`), and also, where the weights of the
  mixture have the sum 1, if all tokens of a sequence are equal.
- A token's output depends on its own query and on the keys of all tokens. For one output token, the
  gradient of a query row is a multiple of that token's input, whichever output features are taken;
  that of a key row is not.
- The last matrix computes each output feature in a row of its own: no other row has a gradient.

Neither names nor the order of the code matter, and the parts of a fused weight are found row by
row. The module runs with random weights in place of its own, which are not changed.
"""

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor, nn
from torch.func import functional_call

from addnorm.stacks.eval_mode import eval_mode
from addnorm.stacks.forward_signature import ForwardSignature, unwrap_compiled
from addnorm.stacks.token_products import DetachScores

BATCH = 32  # a ReLU is closed for all of 32 random sequences once in 4e9 times
LENGTHS = (5, 7, 11, 13, 17, 19, 23)
"""Primes: a number of tokens that divides no size of a weight is seen in axes of tokens only."""
EVEN_LENGTH = 6  # for modules that take pairs or windows of tokens
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

    def iter_runs(self) -> Iterator[tuple[str, int, int]]:
        """Yield (role, start, stop) of rows with the same role that follow each other."""
        start = 0
        for role, run in groupby(self.rows):
            stop = start + len(list(run))
            yield role, start, stop
            start = stop


@dataclass(frozen=True)
class ProbeResult:
    """Roles found by running a module."""

    rows: dict[str, RowRoles]
    """Roles of the rows of each weight, by name."""
    has_product: bool
    """Whether results that depend on tokens are multiplied, as queries and keys are."""


ProbeCache = dict[Hashable, ProbeResult]
"""Results by what the module computed; modules that compute the same are probed once."""


def probe_roles(
    module: nn.Module, names: Sequence[str], *, dim: int, cache: ProbeCache | None = None
) -> ProbeResult:
    """Return the roles of the rows of weights.

    Args:
        module: sub-layer from (B, L, dim) to the same shape
        names: names of the weights, each with two or more axes
        dim: features of the stream
        cache: results of other modules, to which that of this one is added

    Raises:
        ProbeError: the module does not run on tokens (B, L, dim)
    """
    module = unwrap_compiled(module)
    tensors = (*module.parameters(), *module.buffers())
    sizes = {size for tensor in tensors for size in tensor.shape}
    problem = ProbeError("it has no weights")
    for length in _list_lengths(sizes, dim):
        try:
            is_distinct = not any(size % length == 0 for size in (sizes | {dim}) - {length})
            probe = _Probe(module, names, dim, length, is_distinct=is_distinct and length != dim)
            return probe.find_roles({} if cache is None else cache)
        except Exception as error:  # whatever the code of a user raises
            problem = problem if problem.__cause__ else _to_probe_error(error)
    raise problem


def _list_lengths(sizes: Iterable[int], dim: int) -> list[int]:
    """Return the lengths to try, best first; token mixers and tables of positions fix one."""
    distinct = [each for each in LENGTHS if all(size % each for size in (*sizes, dim))]
    fixed = sorted(size for size in sizes if size <= MAX_LENGTH)
    return list(dict.fromkeys((*distinct[:1], EVEN_LENGTH, *fixed)))


class _Probe:
    """One module with random weights and tokens of one length."""

    def __init__(
        self, module: nn.Module, names: Sequence[str], dim: int, length: int, *, is_distinct: bool
    ) -> None:
        self.module, self.names, self.dim, self.length = module, names, dim, length
        self.is_distinct = is_distinct  # whether only axes of tokens have this length
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

    def find_roles(self, cache: ProbeCache) -> ProbeResult:
        tokens = self._draw(BATCH, self.length, self.dim)
        varied = self._run(tokens)
        if not varied.requires_grad:
            raise ProbeError("its output has no gradient")
        factors = self._draw(*varied.shape)
        total = self._gradients(varied, factors)
        key = self._describe_function(varied, total)
        if key not in cache:
            cache[key] = self._classify(tokens, varied, factors, total)
        return cache[key]

    def _describe_function(self, y: Tensor, grads: list[Tensor]) -> Hashable:
        """Return what the module computes: equal weights and tokens give this output."""
        shapes = tuple((name, tuple(tensor.shape)) for name, tensor in self.tensors.items())
        output = hashlib.sha256(y.detach().cpu().numpy().tobytes()).hexdigest()
        return shapes, tuple(self.names), output, tuple(grad.norm().item() for grad in grads)

    def _classify(
        self, tokens: Tensor, varied: Tensor, factors: Tensor, total: list[Tensor]
    ) -> ProbeResult:
        features = range(min(3, self.dim))
        by_feature = [self._gradients(varied[..., i], factors[..., i]) for i in features]
        positions = range(min(3, self.length))
        by_position = [self._gradients(varied[:, i], factors[:, i]) for i in positions]
        last = [
            [self._gradients(varied[i, -1], self._draw(self.dim)) for _ in range(2)]
            for i in range(NUM_PAIRS)
        ]
        equal_tokens = tokens[:, :1].repeat(1, self.length, 1)
        equal = self._gradients(self._run(equal_tokens), factors)
        without_scores = DetachScores(tokens, self.length if self.is_distinct else None)
        detached = self._gradients(self._run(tokens, without_scores), factors)
        rows = {
            name: _classify_rows(
                total[index],
                (equal[index], detached[index]),
                [(one[index], other[index]) for one, other in last],
                {
                    self.dim: [each[index] for each in by_feature],
                    self.length: [each[index] for each in by_position],
                },
            )
            for index, name in enumerate(self.names)
        }
        return ProbeResult(rows, without_scores.has_product)

    def _run(self, x: Tensor, mode: DetachScores | None = None) -> Tensor:
        signature = ForwardSignature.from_module(self.module)
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=self.device)
        known = {"mask": mask, "memory": x, "memory_mask": mask}
        unknown = [name for name in signature.required if name not in known]
        if unknown:
            raise ProbeError(f"its forward requires {unknown[0]!r}")
        kwargs = {name: known[name] for name in signature.required}
        with (
            eval_mode(self.module),
            torch.random.fork_rng(),
            torch.enable_grad(),
            mode or nullcontext(),
        ):
            y = functional_call(self.module, self.tensors, (x,), kwargs)
        if not isinstance(y, Tensor) or y.shape != x.shape:
            raise ProbeError("its output does not have the shape of its input")
        if not y.isfinite().all():
            raise ProbeError("its output is not finite")
        return y

    def _gradients(self, y: Tensor, factors: Tensor) -> list[Tensor]:
        if not y.requires_grad:
            return [torch.zeros_like(leaf) for leaf in self.leaves]
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
    fixed_mixture: Sequence[Tensor],
    last: list[tuple[Tensor, Tensor]],
    by_output: dict[int, list[Tensor]],
) -> RowRoles:
    """Return the roles of the rows of one weight from its gradients.

    Args:
        total: gradient of the whole output
        fixed_mixture: gradients where queries and keys have no effect on the output
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
        vanishing = [_row_norms(each, axis) < VANISHING * norms for each in fixed_mixture]
        mixing = used & torch.stack(vanishing).any(0)
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


def _to_probe_error(error: Exception) -> ProbeError:
    if isinstance(error, ProbeError):
        return error
    problem = ProbeError(f"{type(error).__name__}: {error}"[:200])
    problem.__cause__ = error
    return problem
