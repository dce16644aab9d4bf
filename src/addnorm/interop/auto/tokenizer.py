"""Conversion of tokenizers to transformers."""

import json
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers, processors
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
SAMPLE_LINES = ("", "a", "Hello, world!", " two  spaces ", "äöü 漢字 \t 😀", "1.5%")
SPECIAL_LINE = "</s> in <s> a text"


def to_hf_tokenizer(
    tokenizer: Tokenizer, kind: str, *, max_length: int | None = None
) -> PreTrainedTokenizerFast:
    """Convert a tokenizer; the result adds the special tokens that a kind of model expects.

    Special tokens inside a text are text, as here: `</s>` does not end it. The tokenizer of a
    masked language model recognizes them all, because transformers cannot recognize `<mask>` alone.

    Args:
        tokenizer: tokenizer of a run
        kind: kind of the model, such as "lm"
        max_length: tokens of a text at most, for truncation

    Raises:
        UserError: the result gives other token ids on sample lines
    """
    values = json.loads(tokenizer.engine.to_str())
    has_mask = tokenizer.mask_id is not None
    strips_spaces = has_mask and tokenizer.has_prefix_space
    for token in values["added_tokens"]:
        # As in `Tokenizer.encode_masked`, the spaces before a mask belong to it.
        token["lstrip"] = token["normalized"] = token["content"] == MASK and strips_spaces
    engine = Engine.from_str(json.dumps(values))
    if strips_spaces:
        # The engine puts a space before each piece of a text between masks. The normalizer puts it
        # before the whole text, since a normalized mask is searched for after it has run.
        engine.normalizer = normalizers.Sequence(
            [
                normalizers.Prepend(" "),
                normalizers.Replace(Regex(r"\A  "), " "),  # a text that begins with a space
                normalizers.Replace(Regex(rf"\A {MASK}\z"), MASK),  # the mask is normalized, too
            ]
        )
        engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.post_processor = processors.TemplateProcessing(
        single=TEMPLATES[kind],
        pair=None,
        special_tokens=[(name, number) for number, name in enumerate(SPECIALS)],
    )
    options: dict[str, Any] = {}
    if has_mask:
        options["mask_token"] = AddedToken(
            MASK, lstrip=strips_spaces, normalized=strips_spaces, special=True
        )
    if max_length is not None:
        options["model_max_length"] = max_length
    converted = PreTrainedTokenizerFast(
        tokenizer_object=engine,
        pad_token=SPECIALS[PAD],
        bos_token=SPECIALS[START],
        eos_token=SPECIALS[END],
        unk_token=SPECIALS[UNKNOWN],
        split_special_tokens=kind != "masked_lm",
        clean_up_tokenization_spaces=False,
        padding_side="left" if kind == "lm" else "right",
        model_input_names=["input_ids", "attention_mask"],
        **options,
    )
    special = () if kind == "masked_lm" else (SPECIAL_LINE,)
    check_same_ids(tokenizer, converted, kind, (*SAMPLE_LINES, *special))
    return converted


def check_same_ids(tokenizer: Tokenizer, converted: Any, kind: str, lines: Sequence[str]) -> None:
    """Raise `UserError` if a converted tokenizer gives other token ids on some lines."""
    first, _, last = TEMPLATES[kind].partition("$A")
    before = [START] if first else []
    after = [END] if last else []
    for line, ids in zip(lines, tokenizer.encode(list(lines)), strict=True):
        expected, got = [*before, *ids, *after], converted(line, verbose=False)["input_ids"]
        if got != expected:
            raise UserError(
                f"tokenizer: expected the ids {expected} of {line!r} after conversion, got {got}"
            )
