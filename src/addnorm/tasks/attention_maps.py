"""Attention maps of outputs, with their tokens."""

from collections.abc import Sequence
from typing import Any

import torch

from addnorm.core.errors import UserError
from addnorm.data.tokenizer import START
from addnorm.decode.engine import InferenceEngine
from addnorm.measure.attention_maps import attention_maps
from addnorm.models import Model
from addnorm.tasks.base import RunProtocol, get_run_task
from addnorm.tasks.classify import LabelPrediction
from addnorm.tasks.line_inference import GeneratedText
from addnorm.tasks.mlm import FilledText


def attention_examples(
    run: RunProtocol, outputs: Sequence[GeneratedText | LabelPrediction | FilledText]
) -> list[dict[str, Any]]:
    """Return the attention maps of outputs, from one forward pass over input and output.

    Args:
        run: the run that produced the outputs
        outputs: outputs of a line function; those without tokens are skipped

    Returns:
        A dict per output. `source` and `target` are lists of tokens; `source` is None if the model
        reads only the target. `maps` has, for each attention stack of the task, an array of (heads,
        queries, keys) per layer. Target token t is the query that predicts token t + 1.
    """
    model = get_observable_model(run)
    device = next(model.parameters()).device
    stacks = get_run_task(run).attention_stacks
    examples = []
    for output in outputs:
        if not output.tokens:
            continue
        source: tuple[int, ...] = output.tokens
        target: tuple[int, ...] = ()
        if isinstance(output, GeneratedText):
            source, target = output.source, (START, *output.tokens)
        inputs = [torch.tensor([ids], device=device) for ids in (source, target) if ids]
        with torch.inference_mode():
            maps = attention_maps(model, *inputs)
        examples.append(
            {
                "source": run.tokenizer.ids_to_tokens(list(source)) if source else None,
                "target": run.tokenizer.ids_to_tokens(list(target)),
                "maps": {
                    name: [layer[0].float().cpu().numpy() for layer in maps[name]]
                    for name in stacks
                },
            }
        )
    return examples


def get_observable_model(run: RunProtocol) -> Model:
    """Return the model of a run; raise `UserError` for an exported one, which has no taps."""
    if isinstance(run.model, InferenceEngine):
        raise UserError(
            "attention maps: expected a run, got an exported model, whose attention cannot be "
            "observed; use the run that it was exported from"
        )
    return run.model
