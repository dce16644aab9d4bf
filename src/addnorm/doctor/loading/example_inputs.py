"""Example inputs: read from a specification, or guessed from a config or from the weights."""

import inspect
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.doctor.trace.errors import USER_CODE_ERRORS, describe_exception
from addnorm.doctor.trace.state_guard import WriteObserver, preserve_all_rng, preserve_model_state

DTYPES = {
    "int64": torch.int64, "int32": torch.int32, "long": torch.int64, "int": torch.int64,
    "float32": torch.float32, "float": torch.float32, "float64": torch.float64,
    "bfloat16": torch.bfloat16, "float16": torch.float16, "bool": torch.bool,
}  # fmt: skip
INPUT_SPEC = re.compile(r"(?:(\w+)\s*:)?\s*(\w+)\s*\[([\d,\s]+)\]\s*(?:<\s*(\d+))?")
BATCH_SIZE, SEQUENCE_LENGTH, IMAGE_SIDES = 2, 16, (32, 64, 224)
SPEC_HELP = (
    'wanted NAME:TYPE[SIZES]<LIMIT, such as "ids:int64[2,128]<50257" or "x:float32[2,16,64]"'
)


def parse_input_specs(specs: Sequence[str], *, seed: int = 0) -> Any:
    """Inputs of specifications: a dict of keywords, or a tuple if they have no names.

    Integers are drawn below the limit (4 if none is given: two values would be a mask), booleans
    are all True, everything else is normal.

    >>> parsed(["ids:int64[2,3]<5"])["ids"].shape
    torch.Size([2, 3])
    """
    generator = torch.Generator().manual_seed(seed)
    found: list[tuple[str, Tensor]] = []
    for spec in specs:
        match = INPUT_SPEC.fullmatch(spec.strip())
        if match is None:
            raise UserError(f"got the input {spec!r}; {SPEC_HELP}")
        name, kind, sizes, limit = match.groups()
        if kind not in DTYPES:
            raise UserError(f"got the type {kind!r} in {spec!r}; wanted one of {', '.join(DTYPES)}")
        shape = [int(size) for size in sizes.split(",") if size.strip()]
        whole = not (DTYPES[kind].is_floating_point or kind == "bool")
        if 0 in shape or (limit is not None and (not whole or int(limit) < 1)):
            raise UserError(
                f"got the input {spec!r}; wanted sizes from 1 on, and a limit from 1 on for whole "
                "numbers only"
            )
        try:
            drawn = _draw_tensor(DTYPES[kind], shape, limit=int(limit or 4), generator=generator)
        except RuntimeError:  # how torch says that there is not so much memory
            raise UserError(f"there is no memory for {spec!r}; wanted a smaller input") from None
        found.append((name or "", drawn))
    names = [name for name, _ in found]
    if all(names):
        if len(set(names)) < len(names):
            raise UserError(f"got two inputs of one name among {', '.join(names)}; name each once")
        return dict(found)
    if any(names):
        raise UserError("got inputs with and without names; name all of them or none")
    return tuple(tensor for _, tensor in found)


def _draw_tensor(
    dtype: torch.dtype, shape: list[int], *, limit: int, generator: torch.Generator
) -> Tensor:
    if dtype == torch.bool:
        return torch.ones(shape, dtype=torch.bool)
    if not dtype.is_floating_point:
        return torch.randint(0, limit, shape, generator=generator).to(dtype)
    return torch.randn(shape, generator=generator).to(dtype)


def guess_inputs(model: nn.Module) -> Any:
    """Inputs with which the model runs; refused, with what to pass, if none is found."""
    tried, why = 0, ""
    with preserve_all_rng(model):
        torch.manual_seed(0)
        for example in itertools.chain(_guess_from_config(model), _guess_from_weights(model)):
            tried += 1
            why = _try_forward(model, example)
            if not why:
                return example
    last = f" (the last one: {why})" if why else ""
    raise UserError(
        f"could not guess inputs of {type(model).__name__}: forward{_format_signature(model)} ran with "
        f'none of {tried} guesses{last}; pass them: --input "NAME:TYPE[SIZES]<LIMIT" once for each'
    )


def _format_signature(model: nn.Module) -> str:
    try:
        return str(inspect.signature(model.forward))[:200]
    except (TypeError, ValueError):
        return "(...)"


def _try_forward(model: nn.Module, example: Any) -> str:
    """What the model says to an example; nothing if it runs."""
    try:
        with preserve_model_state(model) as guard, WriteObserver(guard), torch.no_grad():
            model.eval()
            model(**example) if isinstance(example, dict) else model(*example)
    except USER_CODE_ERRORS as problem:  # that is what a guess is for
        return describe_exception(problem)
    return ""


def _guess_from_config(model: nn.Module) -> Iterator[Any]:
    """What a Hugging Face config says about the inputs."""
    config = getattr(model, "config", None)
    main = getattr(model, "main_input_name", None)
    if config is None or main is None:
        return
    taken = set(inspect.signature(model.forward).parameters)
    for length in (SEQUENCE_LENGTH, 64, 400, 3000):
        for example in _draw_for_modality(config, str(main), length=length):
            if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in taken:
                ids = _draw_ids(_vocabulary_size(config), 8)
                example = {**example, "decoder_input_ids": ids}
            if "pixel_values" in taken and "input_ids" in taken and main == "input_ids":
                for images in _draw_images(getattr(config, "vision_config", config)):
                    yield {**example, "pixel_values": images}
            yield example


def _draw_for_modality(config: Any, input_name: str, *, length: int) -> Iterator[dict[str, Tensor]]:
    if input_name == "pixel_values":
        for images in _draw_images(config):
            yield {input_name: images}
    elif input_name == "input_values":
        yield {input_name: torch.randn(BATCH_SIZE, length)}
    elif input_name == "input_features":
        bins = getattr(config, "num_mel_bins", 80)
        longest = 2 * getattr(config, "max_source_positions", 1500)
        yield {input_name: torch.randn(BATCH_SIZE, bins, longest)}
        yield {input_name: torch.randn(BATCH_SIZE, length, bins)}
    else:
        most = getattr(config, "max_position_embeddings", None)
        most = most if isinstance(most, int) and most > 1 else length
        yield {input_name: _draw_ids(_vocabulary_size(config), min(length, most))}


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
    """What the first weights want to read, as many times as forward has required inputs."""
    try:
        parameters = list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    needed = [
        p for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]  # fmt: skip
    if not parameters:
        yield ()
    count = max(len(needed), 1)
    for one in _candidate_inputs(model):
        yield _bind_inputs(needed, (one,) * count)
    if count == 2:
        for one in _candidate_inputs(model):
            if one.dim() >= 2:
                yield _bind_inputs(needed, (one, torch.ones(one.shape[:2], dtype=torch.bool)))


def _bind_inputs(parameters: Sequence[inspect.Parameter], values: tuple[Tensor, ...]) -> Any:
    """Values as forward takes them: by place, or by name if it wants one so."""
    by_name = any(p.kind is p.KEYWORD_ONLY for p in parameters)
    return {p.name: v for p, v in zip(parameters, values, strict=True)} if by_name else values


def _table_sizes(model: nn.Module) -> set[int]:
    """Rows of everything that may be a table of tokens: embeddings, and matrices that stand in a
    module of the user's own."""
    found: set[int] = set()
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            found.add(module.num_embeddings)
        elif not type(module).__module__.startswith("torch."):
            own = module.parameters(recurse=False)
            found |= {w.shape[0] for w in own if w.dim() == 2 and w.shape[0] > 1}
    return found


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
