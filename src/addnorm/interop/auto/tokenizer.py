"""Conversion of tokenizers to transformers."""

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Engine
from transformers import PreTrainedTokenizerFast

from addnorm.core.errors import UserError
from addnorm.data.tokenizer import END, MASK, PAD, SPECIALS, START, UNKNOWN, Tokenizer

TEMPLATES = {
    "lm": f"{SPECIALS[START]} $A",
    "classifier": f"{SPECIALS[START]} $A",
    "masked_lm": f"{SPECIALS[START]} $A {SPECIALS[END]}",
    "seq2seq": f"$A {SPECIALS[END]}",
}
"""Special tokens that each kind of model is trained with; `$A` is the text."""
SAMPLE_LINES = (
    "",
    "a",
    "Hello, world!",
    " two  spaces ",
    "</s> in <s> a text",
    "äöü 漢字 \t 😀",
    "1.5%",
)


def to_hf_tokenizer(
    tokenizer: Tokenizer, kind: str, *, max_length: int | None = None
) -> PreTrainedTokenizerFast:
    """Convert a tokenizer; the result adds the special tokens that a kind of model expects.

    Special tokens inside a text are text, as here: `</s>` does not end it. Only `<mask>` is
    recognized, if the tokenizer has it.

    Args:
        tokenizer: tokenizer of a run
        kind: kind of the model, such as "lm"
        max_length: tokens of a text at most, for truncation

    Raises:
        UserError: the result gives other token ids on sample lines
    """
    engine = Engine.from_str(tokenizer.engine.to_str())
    if tokenizer.mask_id is not None:
        # Not special, so that it is found although special tokens in a text are not. As here, the
        # spaces before it belong to it.
        engine.add_tokens([AddedToken(MASK, lstrip=not tokenizer.is_char, special=False)])
    numbers = [(name, number) for number, name in enumerate(SPECIALS)]
    engine.post_processor = processors.TemplateProcessing(
        single=TEMPLATES[kind], pair=None, special_tokens=numbers
    )
    names: dict[str, Any] = {
        "pad_token": SPECIALS[PAD],
        "bos_token": SPECIALS[START],
        "eos_token": SPECIALS[END],
        "unk_token": SPECIALS[UNKNOWN],
    }
    if tokenizer.mask_id is not None:
        names["mask_token"] = MASK
    if max_length is not None:
        names["model_max_length"] = max_length
    converted = PreTrainedTokenizerFast(
        tokenizer_object=engine,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        padding_side="left" if kind == "lm" else "right",
        model_input_names=["input_ids", "attention_mask"],
        **names,
    )
    check_same_ids(tokenizer, converted, kind, SAMPLE_LINES)
    return converted


def check_same_ids(tokenizer: Tokenizer, converted: Any, kind: str, lines: Sequence[str]) -> None:
    """Raise `UserError` if a converted tokenizer gives other token ids on some lines."""
    first, _, last = TEMPLATES[kind].partition("$A")
    before = [START] if first else []
    after = [END] if last else []
    for line, ids in zip(lines, tokenizer.encode(list(lines)), strict=True):
        expected, got = [*before, *ids, *after], converted(line)["input_ids"]
        if got != expected:
            raise UserError(
                f"tokenizer: expected the ids {expected} of {line!r} after conversion, got {got}"
            )
