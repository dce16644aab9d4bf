"""Every field of every config, changed alone: the answer is still the same, or it is refused."""

import contextlib

import pytest
import transformers

from addnorm.core.errors import UserError
from tests.interop.cases import ENCODERS, GPTS, IMAGES, LLAMAS, PAIRS
from tests.interop.zoo import batch, compare, images, there_and_back

pytestmark = [
    pytest.mark.peer,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]
PLAIN = [case for case in ENCODERS + GPTS + IMAGES + LLAMAS + PAIRS if not case.note]
LEFT_OUT = {"dtype", "transformers_version", "model_type", "vocab_size", "is_encoder_decoder"}
# Falcon answers otherwise with output_attentions, MPT beyond max_seq_len: mistakes of theirs.
LEFT_OUT |= {"output_attentions", "max_seq_len"}
LEFT_OUT |= {"return_dict", "initializer_factor", "initializer_range", "init_std", "torchscript"}


def others(value):
    """Values that differ from a value in an interesting way."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value * 2, value + 1, 1]
    if isinstance(value, float):
        return [value * 2 + 0.25]
    if isinstance(value, str):
        return ["relu", "silu"]
    return [True, 2, 0.5] if value is None else []


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_no_field_is_overlooked(case):
    fields = getattr(transformers, case.config)(**case.values).to_dict()
    compared, wrong = 0, []
    for name, value in fields.items():
        if name in LEFT_OUT:
            continue
        for other in others(value):
            model, works = None, False
            with contextlib.suppress(Exception):  # many values make no sense to transformers
                model = case.build(**{name: other})
                inputs = images() if "image_size" in fields else batch(model, "right")
                if model.config.is_encoder_decoder:
                    inputs["decoder_input_ids"] = batch(model, seed=3)["input_ids"]
                model(**inputs)
                works = True
            if not works:
                continue
            try:
                compare(model, there_and_back(model), inputs, tolerance=1e-4)
            except UserError:
                continue
            except AssertionError as problem:
                wrong.append(f"{name}={other!r}: {problem}")
            compared += 1
    assert compared > 5 and not wrong, "\n".join(wrong)
