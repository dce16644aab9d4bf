import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import addnorm
from addnorm.core.errors import ExportRefusedError, UserError
from addnorm.data.tokenizer import END, START
from addnorm.decode import DecodingOptions, Sentence, decode
from addnorm.exporters import open_engine
from addnorm.exporters.ctranslate2.spec import build_spec
from addnorm.exporters.ctranslate2.write import _quantize_int8
from addnorm.models import build
from tests.exporters.random_models import make_model

ct2 = pytest.importorskip("ctranslate2")

PAIRS = [
    {"wiring": "post_ln"},
    {"wiring": "post_ln", "norm": "rms"},
    {"wiring": "post_ln(final_norm=True)"},
    {"wiring": "pre_ln"},
    {"wiring": "sandwich"},
    {"wiring": "sandwich", "norm": "rms", "encoder_wiring": "post_ln"},
    {"wiring": "none"},
    {"wiring": "none", "embed_norm": "layer"},
    {"embed_norm": "layer(eps=1e-9)", "embed_scale": "sqrt_dim", "positions": "learned(length=40)"},
    {"norm": "rms", "positions": "rotary", "activation": "swiglu", "bias": False, "kv_heads": 2},
    {"tied": False, "head_cap": 30.0, "head_scale": 0.5, "scale": 0.3},
    {"norm": "rms", "positions": "t5", "scale": 1.0, "source_vocab": 20},
    {"positions": "none", "encoder_depth": 3, "table_norm": "fixnorm"},
]
LANGUAGE_MODELS = [
    {"wiring": "post_ln", "norm": "rms"},
    {"wiring": "pre_ln"},
    {"wiring": "sandwich"},
    {"wiring": "parallel"},
    {"wiring": "parallel(norms=own)", "norm": "rms"},
    {"wiring": "none"},
    {"positions": "alibi"},
    {"positions": "rotary(share=0.5, layout=interleaved)", "kv_heads": 1},
    {"positions": "rotary(scaling=linear, factor=4.0)", "head_dim": 8, "out_bias": False},
    {"qk_norm": "rms_head(eps=1e-9)", "positions": "rotary", "activation": "geglu_tanh"},
]
ENCODERS = [
    (
        "classifier",
        {"embed_norm": "layer(eps=1e-12)", "types": 2, "embed_scale": 3.0, "classes": 3},
    ),
    (
        "classifier",
        {"wiring": "post_ln", "pooler": True, "pooler_activation": "gelu", "classes": 3},
    ),
    ("classifier", {"norm": "rms", "positions": "rotary", "pooling": "mean", "classes": 2}),
    ("classifier", {"wiring": "sandwich", "norm": "layer(affine=False)"}),
    ("masked_lm", {"activation": "gelu", "head_layer": True, "head_bias": True, "head_cap": 5.0}),
]
REFUSED = [
    ("lm", {"wiring": "b2t"}, "decoder: .*b2t"),
    (
        "lm",
        {"wiring": "hyper"},
        "decoder: .*hyper-connections keep 4 streams; CTranslate2 has one; use --to onnx",
    ),
    ("seq2seq", {"wiring": "parallel"}, "cross-attention"),
    ("lm", {"positions": "learned_t5"}, "decoder.positions: a table of positions with a relative"),
    ("classifier", {"embed_dim": 8}, "encoder: a projection of the embedding from 8 features"),
    ("lm", {"norm": "dyt"}, "decoder norm 0: the norm DyT"),
    ("lm", {"norm": "rms(bias=True)", "wiring": "post_ln"}, "RMSNorm with a bias"),
    ("lm", {"window": 4}, r"window \(window=4\)"),
    ("lm", {"cap": 5.0}, r"attention logits \(cap=5.0\)"),
    ("lm", {"positions": "t5"}, "T5's relative positions"),
    ("lm", {"positions": "rotary(scaling=llama3)"}, "decoder.positions: rotary scaling llama3"),
    ("lm", {"qk_norm": "cosine"}, "decoder layer 0, self: the query-key norm cosine"),
    ("lm", {"wiring": "pre_ln(first_norm=False)"}, "decoder norm 0: no norm"),
    ("seq2seq", {"qk_norm": "rms_head"}, "query-key norm of cross-attention"),
    ("seq2seq", {"positions": "alibi"}, "encoder: ALiBi"),
    ("seq2seq", {"encoder_norm": "rms"}, "norms: epsilons of 1e-06 in encoder and 1e-05"),
]


def make_sentences(kind, count=12):
    """Return sentences of several lengths and limits."""
    generator = torch.Generator().manual_seed(3)
    rows = [
        tuple(torch.randint(4, 20, (2 + index % 7,), generator=generator).tolist())
        for index in range(count)
    ]
    if kind == "lm":
        return [Sentence((START, *row), 3 + index % 5) for index, row in enumerate(rows)]
    return [
        Sentence((START, 5, 7)[: 1 + index % 3], 3 + index % 5, (*row, END))
        for index, row in enumerate(rows)
    ]


@pytest.mark.parametrize(
    "kind, changes", [("seq2seq", c) for c in PAIRS] + [("lm", c) for c in LANGUAGE_MODELS], ids=str
)
def test_export_has_equal_scores_and_decodes_equally(kind, changes, tmp_path):
    model = make_model(kind, **changes)
    report = addnorm.export(model, to="ctranslate2", out=tmp_path / "out")
    assert report.max_error <= (1e-3 if changes.get("wiring") == "none" else 2e-5)
    assert report.grade == ("rounding" if changes.get("wiring") == "none" else "exact")
    engine, sentences = open_engine(tmp_path / "out"), make_sentences(kind)
    if changes.get("positions") == "t5":
        sentences = [replace(each, prefix=(START,)) for each in sentences]
    for options in (
        DecodingOptions(),
        DecodingOptions(beam=4, length_penalty=0),
        DecodingOptions(beam=3, nbest=3, length_penalty=0),
        DecodingOptions(beam=3, length_penalty="mean", stop="exact"),
        DecodingOptions(beam=3, nbest=2),
    ):
        expected, got = decode(model, sentences, options), decode(engine, sentences, options)
        for ours, theirs in zip(expected, got, strict=True):
            assert [each.tokens for each in ours] == [each.tokens for each in theirs]
            assert [each.ended for each in ours] == [each.ended for each in theirs]
            if options.length_penalty == 0 and report.grade == "exact":
                scores = [[each.score for each in side] for side in (ours, theirs)]
                assert scores[0] == pytest.approx(scores[1], abs=2e-2)


@pytest.mark.parametrize("kind, changes", ENCODERS, ids=str)
def test_encoders_have_equal_outputs(kind, changes, tmp_path):
    model = make_model(kind, **changes)
    report = addnorm.export(model, to="ctranslate2", out=tmp_path / "out")
    assert report.max_error <= 2e-5
    ids, mask = torch.randint(4, 30, (3, 6)), torch.arange(6) < torch.tensor([[6], [2], [4]])
    kwargs = {"mask": mask}
    if model.config.types:
        kwargs["type_ids"] = torch.randint(2, ids.shape)
    got, expected = open_engine(tmp_path / "out")(ids, **kwargs), model(ids, **kwargs)
    if expected.ndim == 3:
        got, expected = got[mask], expected[mask]
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind, changes, message", REFUSED, ids=str)
def test_what_cannot_be_expressed_is_refused_with_its_site(kind, changes, message, tmp_path):
    with pytest.raises(ExportRefusedError, match=message):
        addnorm.export(make_model(kind, **changes), to="ctranslate2", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_images_are_refused(tmp_path):
    model = build(kind="classifier", dim=16, depth=1, heads=2, image=8, patch=4, classes=2)
    with pytest.raises(ExportRefusedError, match="model: images"):
        addnorm.export(model, to="ctranslate2", out=tmp_path / "out")


@pytest.mark.parametrize("quantize, limit", [("int8", 63), ("int8_full", 127)])
def test_int8_weights_stay_in_their_range(quantize, limit, tmp_path, monkeypatch):
    stored = []

    def record(spec, most):
        _quantize_int8(spec, most)
        stored.extend(
            value.numpy() for value in spec.variables().values() if not isinstance(value, str)
        )

    monkeypatch.setattr("addnorm.exporters.ctranslate2.write._quantize_int8", record)
    report = addnorm.export(
        make_model("seq2seq"), to="ctranslate2", out=tmp_path / "out", quantize=quantize
    )
    assert report.grade == "approximate"
    weights = [value for value in stored if value.dtype == np.int8 and value.ndim == 2]
    assert {int(np.abs(weight).max()) for weight in weights} == {limit}
    assert 1e-4 < report.max_error < 0.5


def test_smaller_numbers_make_smaller_files(tmp_path):
    model, sizes = make_model("lm", dim=64, positions="rotary"), {}
    for quantize in (None, "int8", "float16", "bfloat16"):
        folder = tmp_path / str(quantize)
        addnorm.export(model, to="ctranslate2", out=folder, quantize=quantize)
        sizes[quantize] = (folder / "model.bin").stat().st_size
    assert sizes["int8"] < 0.5 * sizes[None]
    assert max(sizes["float16"], sizes["bfloat16"]) < 0.7 * sizes[None]


def test_folder_is_read_by_the_engine_alone(tmp_path):
    addnorm.export(make_model("lm"), to="ctranslate2", out=tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["bos_token"] == "<s>" and config["layer_norm_epsilon"] == 1e-5
    generator = ct2.Generator(str(tmp_path / "out"))
    (result,) = generator.generate_batch([["<s>", "<7>"]], max_length=3)
    assert result.sequences[0][0] == "<7>" and len(result.sequences[0]) == 3


def test_unsupported_options_and_lengths_are_reported(tmp_path):
    model = make_model("seq2seq", positions="learned(length=12)")
    addnorm.export(model, to="ctranslate2", out=tmp_path / "out")
    engine = open_engine(tmp_path / "out")
    sentence = Sentence((START,), 5, (7, 8, END))
    with pytest.raises(UserError, match="min_p"):
        decode(engine, [sentence], DecodingOptions(min_p=0.1))
    with pytest.raises(UserError, match="source: expected at most 12 tokens"):
        decode(engine, [Sentence((START,), 5, (7,) * 13)])
    with pytest.raises(UserError, match="text: expected at most 12 tokens"):
        decode(engine, [Sentence((START,), 13, (7, 8))])
    with pytest.raises(UserError, match=r"--quantize: expected .*int8"):
        addnorm.export(model, to="ctranslate2", out=tmp_path / "two", quantize="int4")


def test_limits_that_share_a_batch_do_not_change_the_tokens(tmp_path):
    model = make_model("lm", positions="learned(length=12)")
    addnorm.export(model, to="ctranslate2", out=tmp_path / "out")
    sentences = [Sentence((START, 5), 11), Sentence((START, 6, 7, 8), 2), Sentence((START, 6), 3)]
    expected, got = decode(model, sentences), decode(open_engine(tmp_path / "out"), sentences)
    assert [best.tokens for (best,) in got] == [best.tokens for (best,) in expected]


def test_samples_differ_and_contain_no_special_token(tmp_path):
    addnorm.export(make_model("lm"), to="ctranslate2", out=tmp_path / "out")
    engine, sentences = open_engine(tmp_path / "out"), [Sentence((START, 5), 12)]
    options = DecodingOptions(top_k=10, temperature=1.5, nbest=4)
    (samples,) = decode(engine, sentences, options)
    assert len({sample.tokens for sample in samples}) > 1
    assert all(token > 3 for sample in samples for token in sample.tokens)


def test_prefixes_are_refused_with_relative_positions(tmp_path):
    model = make_model("seq2seq", norm="rms", positions="t5")
    addnorm.export(model, to="ctranslate2", out=tmp_path / "out")
    with pytest.raises(UserError, match="prefix: expected none"):
        decode(open_engine(tmp_path / "out"), [Sentence((START, 5, 6), 4, (7, 8))])


def test_vocabulary_must_fit_the_table():
    model = make_model("lm")
    with pytest.raises(ExportRefusedError, match="tokenizer: 29 different tokens for an embedding"):
        build_spec(model, [f"{index}" for index in range(29)])
    assert re.match(r"<4>", build_spec(model)._vocabulary[4])


FOLDED = ["deepnorm", "rezero", "rezero(post_norm=True)", "layer_scale", "ln_scaling", "fixup"]
FOLDED += [
    "drop_path(deepnorm, rate=0.1)",
    "scaled(pre_ln, 0.3)",
    "drop_path(scaled(post_ln, 0.5))",
]


@pytest.mark.parametrize("wiring", FOLDED)
def test_what_folds_is_exported(wiring, tmp_path):
    model = make_model("seq2seq", wiring=wiring)
    report = addnorm.export(model, to="ctranslate2", out=tmp_path / "out")
    assert report.form in ("post_ln", "pre_ln", "none") and report.max_error < 1e-4
    assert report.proof.greedy == (5, 5) == report.proof.beam
    assert any(wiring.split("(")[0] in note for note in report.notes)
