"""Vocabulary of operations: canonical names, and what each group does to a stream.

A new operation of PyTorch usually needs one more word in one of these sets. An operation that is
in none of them ends a stream: walks do not pass through it, and it does not make a branch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

ADDS = frozenset({"add", "sub", "rsub", "addmm", "baddbmm", "gru_cell", "index_add", "scatter_add"})
"""Operations that may add a branch to a shortcut, after `trace/fused_ops.py`."""
SUMS = frozenset({"sum", "mean", "einsum", "matmul", "tensordot"})
"""Operations that may sum stacked streams."""
ATTENTION = frozenset(
    {"scaled_dot_product_attention", "multi_head_attention_forward", "flex_attention"}
)
CONVOLUTION = frozenset(
    {"conv1d", "conv2d", "conv3d", "conv_tbc", "convolution"}
    | {f"conv_transpose{n}d" for n in (1, 2, 3)}
)
POOLING = frozenset(
    {f"{way}_pool{n}d" for way in ("avg", "max", "adaptive_avg", "adaptive_max") for n in (1, 2, 3)}
)
FOURIER = frozenset(
    f"{prefix}{name}"
    for prefix in ("", "fft_")
    for name in (
        "fft",
        "ifft",
        "fft2",
        "ifft2",
        "fftn",
        "ifftn",
        "rfft",
        "irfft",
        "rfft2",
        "irfft2",
        "rfftn",
        "irfftn",
    )
)
RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu", "gru_cell", "lstm_cell"})
PRODUCT = frozenset(
    {"matmul", "mm", "bmm", "einsum", "baddbmm", "addmm", "addbmm", "tensordot", "bilinear"}
    | {"chain_matmul", "inner", "mv", "dot", "vecdot"}
)
MIXING = (
    ATTENTION | CONVOLUTION | POOLING | FOURIER | RECURRENT | PRODUCT
    | {"linear", "cumsum", "opaque", "grouped_mm", "_grouped_mm", "scatter_add", "index_add"}
)  # fmt: skip
"""Operations that mix features or tokens; a branch contains at least one."""
NAMED_NORMS = {
    "layer_norm": "layer", "native_layer_norm": "layer", "rms_norm": "rms", "group_norm": "group",
    "batch_norm": "batch", "instance_norm": "instance", "normalize": "l2",
    "hidden_layer": "layer", "hidden_rms": "rms", "local_response_norm": "response",
}  # fmt: skip
NONLINEAR = ATTENTION | {
    "relu", "gelu", "silu", "mish", "tanh", "sigmoid", "softmax", "elu", "leaky_relu", "hardswish",
    "relu6", "selu", "celu", "softplus", "glu", "log_softmax", "prelu", "hardtanh", "hardsigmoid",
    "softsign", "logsigmoid", "threshold", "rrelu", "erf", "log_sigmoid", "tanhshrink",
}  # fmt: skip
DROPOUT = frozenset(
    {"dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"}
    | {f"dropout{n}d" for n in (1, 2, 3)}
)
CASTS = frozenset({"to", "type", "float", "half", "bfloat16", "double", "type_as", "cpu", "cuda"})
PASS_THROUGH = DROPOUT | CASTS | {
    "bernoulli", "contiguous", "clone", "view", "reshape", "view_as", "reshape_as", "flatten",
    "unflatten", "permute", "transpose", "t", "squeeze", "unsqueeze", "expand", "expand_as",
    "alias", "identity", "roll", "pad", "constant_pad_nd", "movedim", "moveaxis", "swapaxes",
    "swapdims", "clamp", "clamp_min", "clamp_max", "nan_to_num", "masked_fill", "where",
    "as_strided", "requires_grad", "resolve_conj", "resolve_neg", "real", "copy", "view_as_real",
    "__get__", "detach", "ravel", "broadcast_to", "atleast_2d", "flip", "mT", "T", "mH", "H",
    "adjoint", "tril", "triu",
}  # fmt: skip
"""Operations that pass a stream on: casts, layout changes, dropout, masks."""
TRANSPOSES = frozenset(
    {"transpose", "permute", "mT", "T", "mH", "H", "adjoint", "t", "swapaxes", "swapdims"}
    | {"movedim", "moveaxis"}
)
"""Operations that permute the axes of a tensor."""
CUMULATIVE = frozenset(
    {"cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "associative_scan"}
)
"""Operations that compute each entry along an axis from those before it."""
SLICES = frozenset(
    {"getitem", "select", "narrow", "chunk", "split", "unbind", "split_with_sizes", "tensor_split"}
    | {"index_select", "gather", "unsafe_chunk", "take_along_dim", "index", "masked_select"}
)
SCALES = frozenset({"mul", "div", "neg"})
REDUCTIONS = frozenset(
    {"mean", "var", "std", "norm", "sum", "var_mean", "std_mean", "vector_norm", "amax"}
    | {"linalg_vector_norm", "linalg_norm", "nanmean", "nansum", "logsumexp", "max", "median"}
)
ROOTS = frozenset(
    {"rsqrt", "sqrt", "norm", "linalg_vector_norm", "vector_norm", "linalg_norm", "std"}
    | {"std_mean", "abs", "amax"}
)
"""Operations that make a statistic a magnitude; a plain sum, as in a softmax, is not one."""
EMBEDDINGS = frozenset({"embedding", "embedding_bag"})
LOOKUPS = frozenset({"getitem", "index", "index_select", "gather", "take", "take_along_dim"})
"""Operations that select rows of a table."""
METADATA = frozenset(
    {f"{prefix}_like" for prefix in ("zeros", "ones", "empty", "full", "rand", "randn", "randint")}
    | {f"new_{name}" for name in ("empty", "zeros", "ones", "full", "tensor")}
    | {"size", "arange", "zero", "fill", "dim", "numel", "bernoulli_like"}
)
"""Operations that read only the shape, dtype or device of their tensor, not its values."""
BORROWS_METADATA = frozenset({"type_as", "view_as", "reshape_as", "expand_as", "to"})
"""Operations that read only the dtype or shape of their second tensor."""

_DUNDERS = {
    "iadd": "add", "radd": "add", "isub": "sub", "imul": "mul", "rmul": "mul", "itruediv": "div",
    "truediv": "div", "rtruediv": "rdiv", "rdiv": "rdiv", "idiv": "div", "ipow": "pow",
    "rmatmul": "matmul", "imatmul": "matmul", "rpow": "rpow",
}  # fmt: skip
_ALIASES = {
    "true_divide": "div", "multiply": "mul", "divide": "div", "subtract": "sub",
    "negative": "neg", "special_softmax": "softmax", "swish": "silu", "concat": "cat",
    "concatenate": "cat", "hstack": "cat", "vstack": "cat", "special_expit": "sigmoid",
    "expit": "sigmoid", "square_": "square", "special_erf": "erf",
    "linear_dynamic": "linear", "linear_relu_dynamic": "linear", "linear_relu": "linear",
}  # fmt: skip


def op_name(func: Any) -> str:
    """Return the name of a function; for a property that transposes (`x.mT`), its name."""
    name = getattr(func, "__name__", str(func))
    owner = getattr(getattr(func, "__self__", None), "__name__", "") if name == "__get__" else ""
    return owner if owner in TRANSPOSES else name


def canonical_op(name: str) -> str:
    """Return one name for the method, in-place, operator and alias forms of an operation.

    >>> [canonical_op(name) for name in ("__iadd__", "add_", "subtract", "__rtruediv__", "relu_")]
    ['add', 'add', 'sub', 'rdiv', 'relu']
    """
    if name.startswith("__") and name.endswith("__"):
        core = name[2:-2]
        return name if core == "get" else _DUNDERS.get(core, core)
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return _ALIASES.get(name, name)


def is_mixing(op: str) -> bool:
    """Return whether an operation mixes features or tokens."""
    return op in MIXING


def _get_argument(
    args: Sequence[Any], kwargs: Mapping[str, Any], position: int, *names: str
) -> Any:
    for name in names:
        if name in kwargs:
            return kwargs[name]
    return args[position] if len(args) > position else None


# Plain arguments that the analysis needs: (name in Node.detail, position, keyword names).
_RELEVANT_ARGUMENTS: dict[str, tuple[tuple[str, int, tuple[str, ...]], ...]] = {
    "layer_norm": (("shape", 1, ("normalized_shape",)), ("eps", 4, ("eps",))),
    "rms_norm": (("shape", 1, ("normalized_shape",)), ("eps", 3, ("eps",))),
    "group_norm": (("groups", 1, ("num_groups",)), ("eps", 4, ("eps",))),
    "batch_norm": (("eps", 7, ("eps",)), ("training", 5, ("training",))),
    "instance_norm": (("eps", 7, ("eps",)),),
    "normalize": (("order", 1, ("p",)), ("dim", 2, ("dim",)), ("eps", 3, ("eps",))),
    "softmax": (("dim", 1, ("dim",)),),
    "getitem": (("index", 1, ("index",)),),
    "einsum": (("equation", 0, ("equation",)),),
    "tensordot": (("dims", 2, ("dims",)),),
    "norm": (("order", 1, ("p",)), ("dim", 2, ("dim",))),
    "linalg_norm": (("order", 1, ("ord",)), ("dim", 2, ("dim",))),
    "linalg_vector_norm": (("order", 1, ("ord",)), ("dim", 2, ("dim",))),
    "cat": (("dim", 1, ("dim",)),),
    "stack": (("dim", 1, ("dim",)),),
    "pow": (("exponent", 1, ("exponent",)),),
    "clamp": (("min", 1, ("min",)),),
    "clamp_min": (("min", 1, ("min",)),),
    "scaled_dot_product_attention": (
        ("rate", 4, ("dropout_p",)),
        ("causal", 5, ("is_causal",)),
        ("scale", 6, ("scale",)),
    ),
    "multi_head_attention_forward": (("causal", 22, ("is_causal",)),),
    "masked_fill": (("fill", 2, ("value",)),),
    "tril": (("diagonal", 1, ("diagonal",)),),
}
_DEFAULT_EPS = {"layer_norm": 1e-5, "group_norm": 1e-5, "batch_norm": 1e-5, "instance_norm": 1e-5,
                "normalize": 1e-12}  # fmt: skip


def _index_pattern(index: Any) -> str:
    """Return what an index does to each axis, one character each.

    ":" keeps the axis, "i" drops it, "n" inserts one, "p" selects along it, a digit k selects along
    k axes by one boolean mask, and "." leaves all remaining axes.
    """
    signs = []
    for part in index if isinstance(index, tuple) else (index,):
        if part is None or isinstance(part, bool):
            signs.append("n")
        elif part is Ellipsis:
            signs.append(".")
        elif isinstance(part, slice):
            signs.append(":")
        elif isinstance(part, int):
            signs.append("i")
        else:
            mask = str(getattr(part, "dtype", "")) == "torch.bool"
            rank = len(getattr(part, "shape", (1,)))
            signs.append(str(rank) if mask else "p" if rank else "i")
    return "".join(signs)


def relevant_arguments(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain arguments that the analysis or a rule needs: axes, epsilon, rates."""
    detail: dict[str, Any] = {}
    parameters = _RELEVANT_ARGUMENTS.get(op, ())
    if op in DROPOUT:
        parameters = (("rate", 1, ("p",)), ("training", 2, ("training", "train")))
        detail |= {"rate": 0.5, "training": True}
    elif not parameters and op in REDUCTIONS | CUMULATIVE:
        parameters = (("dim", 1, ("dim", "axis")),)
    elif op in FOURIER:
        parameters = (("dim", 2, ("dim",)),)
    for name, position, keywords in parameters:
        value = _get_argument(args, kwargs, position, *keywords)
        if value is not None and (name == "index" or not hasattr(value, "grad_fn")):
            detail[name] = _index_pattern(value) if name == "index" else value
    if op in _DEFAULT_EPS:
        detail.setdefault("eps", _DEFAULT_EPS[op])
    return detail
