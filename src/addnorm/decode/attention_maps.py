"""Attention maps of answers: who looked where, with the tokens on the axes."""

from collections.abc import Sequence
from typing import Any

import torch

from addnorm.data.tokenizer import START
from addnorm.decode.inference import GeneratedText, LabelPrediction, RunProtocol
from addnorm.measure.attention import attention_maps

STACKS_BY_TASK = {
    "translate": ("encoder", "decoder", "cross"),
    "lm": ("decoder",),
    "classify": ("encoder",),
}


def attention_examples(
    run: RunProtocol, answers: Sequence[GeneratedText | LabelPrediction]
) -> list[dict[str, Any]]:
    """Maps of each answer, from one pass over the text that was read and the one that was written.

    An example has source and target, lists of tokens (source None where nothing but the target is
    read), and maps: for each stack that the task has,
    one array of (heads, queries, keys) a layer. Target token t is the query that token t + 1 was
    chosen from. Lines without an answer are left out.
    """
    device = next(run.model.parameters()).device
    examples = []
    for answer in answers:
        if not answer.tokens:
            continue
        source: tuple[int, ...] = ()
        target: tuple[int, ...] = ()
        if isinstance(answer, LabelPrediction):
            source = answer.tokens
        else:
            source, target = answer.source, (START, *answer.tokens)
        inputs = [torch.tensor([ids], device=device) for ids in (source, target) if ids]
        with torch.inference_mode():
            maps = attention_maps(run.model, *inputs)
        examples.append(
            {
                "source": run.tokenizer.ids_to_tokens(list(source)) if source else None,
                "target": run.tokenizer.ids_to_tokens(list(target)),
                "maps": {
                    name: [layer[0].float().cpu().numpy() for layer in maps[name]]
                    for name in STACKS_BY_TASK[run.task]
                },
            }
        )
    return examples
