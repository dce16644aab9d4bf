"""Example inputs: parsed from specifications, or guessed from the config or the weights.

A guess is a candidate that the model runs on. Candidates come from a Hugging Face config
(`main_input_name`, vocabulary and image size) and from the first weights: an embedding suggests
ids, a convolution images, a linear layer vectors.
"""

import inspect
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.doctor.loading.memory_limit import limit_memory
from addnorm.doctor.trace.errors import USER_CODE_ERRORS, describe_exception
from addnorm.doctor.trace.state_guard import WriteObserver, preserve_all_rng, preserve_model_state

DTYPES = {
    "int64": torch.int64, "int32": torch.int32, "long": torch.int64, "int": torch.int64,
    "float32": torch.float32, "float": torch.float32, "float64": torch.float64,
    "bfloat16": torch.bfloat16, "float16": torch.float16, "bool": torch.bool,
}  # fmt: skip
INPUT_SPEC = re.compile(r"(?:(\w+)\s*:)?\s*(\w+)\s*\[([\d,\s]+)\]\s*(?:<\s*(\d+))?")
BATCH_SIZE, SEQUENCE_LENGTH, IMAGE_SIDES = 2, 16, (32, 64, 224)
SPEC_HELP = 'NAME:TYPE[SIZES]<LIMIT, such as "ids:int64[2,128]<50257" or "x:float32[2,16,64]"'


def parse_input_specs(specs: Sequence[str], *, seed: int = 0) -> Any:
    """Create random inputs from specifications of the form NAME:TYPE[SIZES]<LIMIT.

    Integers are uniform below the limit. The default limit is 4, because an input of zeros and
    ones would be taken as a mask. Booleans are all True, floats are standard normal.

    Args:
        specs: one specification per input; either all have a name or none
        seed: seed of the random values

    Returns:
        A dict of keyword arguments, or a tuple if the inputs have no names.

    >>> parse_input_specs(["ids:int64[2,3]<5"])["ids"].shape
    torch.Size([2, 3])
    """
    generator = torch.Generator().manual_seed(seed)
    inputs: list[tuple[str, Tensor]] = []
    for spec in specs:
        match = INPUT_SPEC.fullmatch(spec.strip())
        if match is None:
            raise UserError(f"--input: expected {SPEC_HELP}, got {spec!r}")
        name, kind, sizes, limit = match.groups()
        if kind not in DTYPES:
            raise UserError(
                f"--input: expected a type among {', '.join(DTYPES)}, got {kind!r} in {spec!r}"
            )
        shape = [int(size) for size in sizes.split(",") if size.strip()]
        is_integer = not (DTYPES[kind].is_floating_point or kind == "bool")
        if 0 in shape or (limit is not None and (not is_integer or int(limit) < 1)):
            raise UserError(
                "--input: expected positive sizes, and a positive limit for integers only, got "
                f"{spec!r}"
            )
        try:
            tensor = _draw_tensor(DTYPES[kind], shape, limit=int(limit or 4), generator=generator)
        except RuntimeError:  # raised by torch when memory runs out
            raise UserError(f"--input: not enough memory for {spec!r}; use smaller sizes") from None
        inputs.append((name or "", tensor))
    names = [name for name, _ in inputs]
    if all(names):
        if len(set(names)) < len(names):
            raise UserError(f"--input: expected distinct names, got {', '.join(names)}")
        return dict(inputs)
    if any(names):
        raise UserError("--input: expected names for all inputs or for none, got both")
    return tuple(tensor for _, tensor in inputs)


def _draw_tensor(
    dtype: torch.dtype, shape: list[int], *, limit: int, generator: torch.Generator
) -> Tensor:
    if dtype == torch.bool:
        return torch.ones(shape, dtype=torch.bool)
    if not dtype.is_floating_point:
        return torch.randint(0, limit, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def guess_inputs(model: nn.Module) -> Any:
    """Find inputs that the model runs on.

    Returns:
        A dict of keyword arguments or a tuple of positional ones.

    Raises:
        UserError: the model runs on no candidate. The message quotes its signature and its last
            error.
    """
    tried, error = 0, ""
    with preserve_all_rng(model):
        torch.manual_seed(0)
        for example in itertools.chain(_guess_from_config(model), _guess_from_weights(model)):
            tried += 1
            error = _try_forward(model, example)
            if not error:
                return example
    last = f" (last error: {error})" if error else ""
    raise UserError(
        f"cannot guess inputs of {type(model).__name__}: "
        f"forward{_format_signature(model)} failed on all {tried} guesses{last}; pass each input "
        'with --input "NAME:TYPE[SIZES]<LIMIT"'
    )


def _format_signature(model: nn.Module) -> str:
    try:
        return str(inspect.signature(model.forward))[:200]
    except (TypeError, ValueError):
        return "(...)"


def _try_forward(model: nn.Module, example: Any) -> str:
    """Run the model and return its error message; empty if it succeeds."""
    try:
        with (
            preserve_model_state(model) as guard,
            WriteObserver(guard),
            torch.no_grad(),
            limit_memory(),
        ):
            model.eval()
            model(**example) if isinstance(example, dict) else model(*example)
    except USER_CODE_ERRORS as problem:  # a wrong guess may raise anything
        return describe_exception(problem)
    return ""


def _guess_from_config(model: nn.Module) -> Iterator[Any]:
    """Iterate over inputs that fit a Hugging Face config."""
    config = getattr(model, "config", None)
    main = getattr(model, "main_input_name", None)
    if config is None or main is None:
        return
    accepted = set(inspect.signature(model.forward).parameters)
    for length in (SEQUENCE_LENGTH, 64, 400, 3000):
        for example in _draw_for_modality(config, str(main), length=length):
            if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in accepted:
                ids = _draw_ids(_vocabulary_size(config), 8)
                example = {**example, "decoder_input_ids": ids}
            if "pixel_values" in accepted and "input_ids" in accepted and main == "input_ids":
                for images in _draw_images(getattr(config, "vision_config", config)):
                    yield {**example, "pixel_values": images}
            yield example
            if "use_cache" in accepted:  # shallow hybrid models have no layer that needs the cache
                yield {**example, "use_cache": False}


def _draw_for_modality(config: Any, input_name: str, *, length: int) -> Iterator[dict[str, Tensor]]:
    if input_name == "pixel_values":
        for images in _draw_images(config):
            yield {input_name: images}
    elif input_name == "input_values":
        yield {input_name: torch.randn(BATCH_SIZE, length)}
    elif input_name == "input_features":
        bins = getattr(config, "num_mel_bins", 80)
        frames = 2 * getattr(config, "max_source_positions", 1500)  # Whisper halves them
        yield {input_name: torch.randn(BATCH_SIZE, bins, frames)}
        yield {input_name: torch.randn(BATCH_SIZE, length, bins)}
    else:
        limit = getattr(config, "max_position_embeddings", None)
        limit = limit if isinstance(limit, int) and limit > 1 else length
        yield {input_name: _draw_ids(_vocabulary_size(config), min(length, limit))}


def _vocabulary_size(config: Any) -> int:
    text = getattr(config, "text_config", config)
    return int(getattr(config, "vocab_size", None) or getattr(text, "vocab_size", None) or 100)


def _draw_images(config: Any) -> Iterator[Tensor]:
    size = getattr(config, "image_size", None) or 64
    size = size[0] if isinstance(size, list | tuple) else size
    yield torch.randn(BATCH_SIZE, getattr(config, "num_channels", 3), size, size)


def _draw_ids(vocabulary_size: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    low = min(5, max(vocabulary_size - 2, 0))
    return torch.randint(
        low, max(vocabulary_size, low + 1), (BATCH_SIZE, length), generator=generator
    )


def _guess_from_weights(model: nn.Module) -> Iterator[Any]:
    """Iterate over inputs that fit the first weights, one tensor per required argument.

    For two required arguments the second is also tried as a mask.
    """
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    required = [
        p for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]  # fmt: skip
    if not parameters:
        yield ()
    count = max(len(required), 1)
    for tensor in _candidate_inputs(model):
        yield _bind_inputs(required, (tensor,) * count)
    if count == 2:
        for tensor in _candidate_inputs(model):
            if tensor.dim() >= 2:
                mask = torch.ones(tensor.shape[:2], dtype=torch.bool)
                yield _bind_inputs(required, (tensor, mask))


def _bind_inputs(parameters: Sequence[inspect.Parameter], values: tuple[Tensor, ...]) -> Any:
    """Return the values as keyword arguments if a parameter is keyword-only, else as a tuple."""
    is_keyword = any(p.kind is p.KEYWORD_ONLY for p in parameters)
    return {p.name: v for p, v in zip(parameters, values, strict=True)} if is_keyword else values


def _table_sizes(model: nn.Module) -> set[int]:
    """Return the row counts of possible embedding tables.

    These are embeddings, and matrices that a module outside torch owns directly.
    """
    sizes: set[int] = set()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            sizes.add(module.num_embeddings)
        elif not type(module).__module__.startswith("torch."):
            own = module.parameters(recurse=False)
            sizes |= {w.shape[0] for w in own if w.dim() == 2 and w.shape[0] > 1}
    return sizes


def _candidate_inputs(model: nn.Module) -> Iterator[Tensor]:
    for rows in sorted(_table_sizes(model), reverse=True)[:2]:
        for length in (SEQUENCE_LENGTH, 8, 4):
            yield _draw_ids(rows, length)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            for side in IMAGE_SIDES:
                yield torch.randn(BATCH_SIZE, module.in_channels, side, side)
            break
        if isinstance(module, nn.Conv1d):
            yield torch.randn(BATCH_SIZE, module.in_channels, 64)
            break
        if isinstance(module, nn.Linear | nn.LayerNorm):
            width = (
                module.in_features if isinstance(module, nn.Linear) else module.normalized_shape[-1]
            )
            yield torch.randn(BATCH_SIZE, SEQUENCE_LENGTH, width)
            yield torch.randn(BATCH_SIZE, width)
            break
        if isinstance(module, nn.MultiheadAttention):
            yield torch.randn(BATCH_SIZE, SEQUENCE_LENGTH, module.embed_dim)
            break
