"""Change every config field alone: the outputs still match, or the model is rejected."""

import contextlib

import pytest
import transformers

from addnorm.core.errors import UserError
from tests.interop.cases import ENCODERS, GPTS, IMAGES, LLAMAS, PAIRS
from tests.interop.zoo import assert_same_outputs, batch, images, round_trip

pytestmark = [
    pytest.mark.peer,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]
PLAIN = [case for case in ENCODERS + GPTS + IMAGES + LLAMAS + PAIRS if not case.note]
SKIPPED_FIELDS = {"dtype", "transformers_version", "model_type", "vocab_size", "is_encoder_decoder"}
# Bugs of transformers: Falcon's outputs change with output_attentions, MPT's beyond max_seq_len.
SKIPPED_FIELDS |= {"output_attentions", "max_seq_len"}
SKIPPED_FIELDS |= {
    "return_dict",
    "initializer_factor",
    "initializer_range",
    "init_std",
    "torchscript",
}


def changed_values(value):
    """Return values that differ from a value in a relevant way."""
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
        if name in SKIPPED_FIELDS:
            continue
        for other in changed_values(value):
            model, works = None, False
            with contextlib.suppress(Exception):  # transformers rejects many values
                model = case.build(**{name: other})
                inputs = images() if "image_size" in fields else batch(model, "right")
                if model.config.is_encoder_decoder:
                    inputs["decoder_input_ids"] = batch(model, seed=3)["input_ids"]
                model(**inputs)
                works = True
            if not works:
                continue
            try:
                assert_same_outputs(model, round_trip(model), inputs, tolerance=1e-4)
            except UserError:
                continue
            except AssertionError as error:
                wrong.append(f"{name}={other!r}: {error}")
            compared += 1
    assert compared > 5 and not wrong, "\n".join(wrong)
