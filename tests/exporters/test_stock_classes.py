"""Plain models as stock classes of transformers."""

import subprocess
import sys

import pytest
import torch

import addnorm
from addnorm.core.errors import ExportRefusedError, UserError
from addnorm.data.tokenizer import END, START
from addnorm.decode import DecodingOptions, Sentence, decode
from addnorm.exporters import open_engine
from addnorm.interop import from_hf
from addnorm.interop.stock import to_stock
from addnorm.interop.stock.widen import StockMismatchError
from tests.exporters.random_models import make_model

ROTARY = {"norm": "rms", "positions": "rotary", "activation": "swiglu", "bias": False}
LM = {"head_bias": False}
CASES = [
    ("marian", "seq2seq", {"wiring": "post_ln", "positions": "sinusoid(layout=half)"}),
    ("marian", "seq2seq", {"wiring": "post_ln"}),
    ("marian", "seq2seq", {"wiring": "post_ln", "source_vocab": 20, "tied": False}),
    (
        "bart",
        "seq2seq",
        {"wiring": "post_ln", "embed_norm": "layer", "positions": "learned(length=40)"},
    ),
    ("blenderbot", "seq2seq", {"encoder_depth": 3, "bias": False}),
    ("pegasus", "seq2seq", {"positions": "sinusoid(layout=half)", "embed_scale": "sqrt_dim"}),
    ("mbart", "seq2seq", {"embed_norm": "layer", "scale": 0.3}),
    ("t5", "seq2seq", LM | {"norm": "rms", "positions": "t5", "bias": False}),
    ("gpt2", "lm", LM),
    ("gpt2", "lm", LM | {"bias": False, "kv_heads": 2, "norm": "layer(affine=False)"}),
    ("gpt2", "lm", LM | {"positions": "none", "embed_scale": 2.0, "table_norm": "fixnorm"}),
    ("opt", "lm", LM | {"wiring": "post_ln"}),
    ("llama", "lm", LM | ROTARY),
    ("llama", "lm", LM | ROTARY | {"positions": "rotary(layout=interleaved)", "embed_scale": 2.0}),
    ("llama", "lm", LM | ROTARY | {"norm": "rms(gain=one_plus)", "kv_heads": 2, "scale": 0.7}),
    ("mistral", "lm", LM | ROTARY | {"positions": "rotary(scaling=llama3)", "window": 5}),
    ("llama", "lm", LM | ROTARY | {"positions": "rotary(scaling=yarn, factor=4.0, length=64)"}),
    (
        "llama",
        "lm",
        LM | ROTARY | {"positions": "rotary(scaling=yarn, fast=8.0, slow=2.0, amplitude=1.3)"},
    ),
    (
        "llama",
        "lm",
        LM
        | ROTARY
        | {"positions": "rotary(scaling=longrope, short='1.0 2.0', long='2.0 3.0', length=5)"},
    ),
    (
        "llama",
        "lm",
        LM | ROTARY | {"positions": "rotary(scaling=dynamic, factor=4.0, length=5)", "heads": 2},
    ),
    ("qwen3", "lm", LM | ROTARY | {"qk_norm": "rms_head", "scale": 0.7}),
    (
        "gemma2",
        "lm",
        LM | ROTARY | {"wiring": "sandwich", "head_cap": 30.0, "cap": 50.0, "window": (4, None)},
    ),
    ("olmo2", "lm", LM | ROTARY | {"wiring": "res_post", "qk_norm": "rms"}),
    ("exaone4", "lm", LM | ROTARY | {"wiring": "res_post", "qk_norm": "rms_head"}),
    ("gpt_neox", "lm", LM | {"positions": "rotary", "wiring": "parallel(norms=own)"}),
    ("phi", "lm", LM | {"positions": "rotary", "wiring": "parallel"}),
    ("starcoder2", "lm", LM | {"positions": "rotary"}),
    ("stablelm", "lm", LM | ROTARY | {"norm": "layer"}),
    ("olmo", "lm", LM | ROTARY | {"norm": "layer(affine=False)"}),
    ("bloom", "lm", LM | {"positions": "alibi", "activation": "gelu_tanh", "embed_norm": "layer"}),
    (
        "bert",
        "classifier",
        {"wiring": "post_ln", "embed_norm": "layer", "pooler": True, "classes": 3},
    ),
    ("megatron-bert", "classifier", {"pooler": True, "classes": 3, "types": 2}),
    ("megatron-bert", "classifier", {}),
    ("megatron-bert", "classifier", {"pooling": "none", "classes": 3}),
    ("roberta-prelayernorm", "classifier", {"embed_norm": "layer", "pooler": True, "classes": 3}),
    (
        "bert",
        "masked_lm",
        {
            "wiring": "post_ln",
            "embed_norm": "layer",
            "head_layer": True,
            "head_bias": True,
            "activation": "gelu",
        },
    ),
]
MISMATCHES = [
    ("lm", LM | {"wiring": "b2t"}, "none has the wiring b2t for kind 'lm'"),
    ("lm", {"head_bias": True}, "gpt2 has no head.bias"),
    ("lm", LM | ROTARY | {"norm": "dyt"}, "has RMSNorm .* not DyT"),
    ("lm", LM | {"positions": "t5"}, "gpt2 has positions learned"),
    ("masked_lm", {"wiring": "post_ln", "embed_norm": "layer"}, "bert has LayerNorm .* head_norm"),
    ("classifier", {"pooling": "mean", "classes": 2}, "pooling='cls', not 'mean'"),
]
WRITTEN = [1, 4, 8, 12, 29]
"""Cases of which folders are written: Marian, Blenderbot, GPT-2, LLaMA and BERT."""
LOAD_WITHOUT_ADDNORM = """
import sys
sys.modules["addnorm"] = None  # importing it fails
import torch, transformers
for argument in sys.argv[1:]:
    folder, class_name = argument.split(":")
    loaded = getattr(transformers, class_name).from_pretrained(folder, output_loading_info=True)
    model, info = loaded
    assert not any(info.values()), info
    inputs = torch.load(folder + "/inputs.pt")
    with torch.no_grad():
        torch.save(model.eval()(**inputs).logits, folder + "/logits.pt")
"""


def run_stock(hf_model, ids):
    with torch.no_grad():
        if hf_model.config.is_encoder_decoder:
            return hf_model(input_ids=ids, decoder_input_ids=ids[:, :3]).logits
        output = hf_model(input_ids=ids)
    return output.logits if "logits" in output else output.last_hidden_state


def run_ours(model, ids):
    with torch.no_grad():
        return model(ids, ids[:, :3]) if model.config.kind == "seq2seq" else model(ids)


@pytest.mark.parametrize("name, kind, changes", CASES, ids=str)
def test_first_class_that_fits_has_equal_outputs(name, kind, changes):
    model = make_model(kind, **changes).double()
    stock = to_stock(model)
    assert stock.name == name
    ids = torch.randint(4, 20, (2, 6), generator=torch.Generator().manual_seed(0))
    expected = run_ours(model, ids)
    # Rotary positions and sinusoids are float32 in transformers, whatever the weights are.
    torch.testing.assert_close(run_stock(stock.hf_model, ids), expected, atol=2e-5, rtol=2e-5)
    assert from_hf(stock.hf_model).config == stock.model.config


@pytest.mark.parametrize("kind, changes, message", MISMATCHES, ids=str)
def test_reason_names_what_the_closest_class_lacks(kind, changes, message):
    with pytest.raises(StockMismatchError, match=message):
        to_stock(make_model(kind, **changes))


@pytest.mark.slow
def test_folders_load_without_addnorm(tmp_path):
    ids = torch.randint(4, 20, (2, 6), generator=torch.Generator().manual_seed(0))
    models, arguments = {}, []
    for index in WRITTEN:
        _, kind, changes = CASES[index]
        model, folder = make_model(kind, **changes), tmp_path / str(index)
        report = addnorm.export(model, to="hf", out=folder)
        inputs = {"input_ids": ids} | (
            {"decoder_input_ids": ids[:, :3]} if kind == "seq2seq" else {}
        )
        torch.save(inputs, folder / "inputs.pt")
        arguments.append(f"{folder}:{report.form}")
        models[folder] = model
    subprocess.run([sys.executable, "-c", LOAD_WITHOUT_ADDNORM, *arguments], check=True)
    for folder, model in models.items():
        logits = torch.load(folder / "logits.pt")
        torch.testing.assert_close(logits, run_ours(model, ids), atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("index", WRITTEN, ids=lambda index: CASES[index][0])
def test_folder_decodes_equally(index, tmp_path):
    _, kind, changes = CASES[index]
    model, folder = make_model(kind, **changes), tmp_path / "out"
    report = addnorm.export(model, to="hf", out=folder)
    assert report.grade == "exact" and report.max_error < 2e-5
    if kind == "classifier":
        return
    assert report.proof.greedy[0] == report.proof.greedy[1]
    assert report.proof.beam[0] == report.proof.beam[1]
    sentences = [
        Sentence((START, 5)[: 1 + number % 2], 3 + number % 4, (6, 7, 8, END)[number % 3 :])
        if kind == "seq2seq"
        else Sentence((START, 5, 6, 7)[: 1 + number % 4], 3 + number % 4)
        for number in range(9)
    ]
    for options in (
        DecodingOptions(),
        DecodingOptions(beam=3, nbest=2),
        DecodingOptions(beam=3, length_penalty="mean", stop="exact"),
        DecodingOptions(temperature=1.3, top_k=6, top_p=0.9, nbest=3, seed=2),
        DecodingOptions(temperature=0.7, min_p=0.1),
    ):
        expected = decode(model, sentences, options)
        got = decode(open_engine(folder), sentences, options)
        for ours, theirs in zip(expected, got, strict=True):
            assert [each.tokens for each in ours] == [each.tokens for each in theirs]
            if options.beam == 1:
                scores = [[each.score for each in side] for side in (ours, theirs)]
                assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_positions_of_marian_survive_in_the_folder(tmp_path):
    report = addnorm.export(make_model("seq2seq", wiring="post_ln"), to="hf", out=tmp_path / "out")
    assert report.form == "MarianMTModel" and "save_pretrained drops" in " ".join(report.notes)
    assert "generate alone divides scores by length" in report.notes[-1]


def test_what_has_no_stock_class_is_written_as_our_own(tmp_path):
    model = make_model("lm", wiring="b2t", head_bias=False)
    report = addnorm.export(model, to="hf", out=tmp_path / "out")
    assert report.form == "AddnormForCausalLM"
    assert "none has the wiring b2t" in report.notes[0] and report.proof.greedy == (5, 5)


def test_card_of_a_stock_class_has_arrangement_data_and_metrics(run_folder, tmp_path):
    folder = run_folder("translate", "wiring=deepnorm")
    report = addnorm.export(folder, to="hf", out=tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert report.form == "MarianMTModel" and "# MarianMTModel: deepnorm, layer" in card
    for part in ("## Written as", "## Data", "## Training", "## Metrics", "loss, validation"):
        assert part in card
    assert "import addnorm" not in card and "AutoModelForSeq2SeqLM.from_pretrained" in card
    assert (tmp_path / "out" / "arrangement.svg").read_text().startswith("<svg")


def test_requested_class_is_written_or_refused(tmp_path):
    model = make_model("lm", head_bias=False)
    assert (
        addnorm.export(model, to="hf", out=tmp_path / "one", family="opt").form == "OPTForCausalLM"
    )
    own = addnorm.export(model, to="hf", out=tmp_path / "two", family="addnorm")
    assert own.form == "AddnormForCausalLM"
    with pytest.raises(
        ExportRefusedError, match=r"--as llama: it computes something else: llama has RMSNorm"
    ):
        addnorm.export(model, to="hf", out=tmp_path / "three", family="llama")
    with pytest.raises(UserError, match=r"--as: expected a class for kind 'lm' .* got 'bert'"):
        addnorm.export(model, to="hf", out=tmp_path / "three", family="bert")
    with pytest.raises(UserError, match="--as: expected one of marian"):
        addnorm.export(model, to="hf", out=tmp_path / "three", family="lama")


@pytest.mark.parametrize(
    "wiring, form",
    [
        ("deepnorm", "MarianMTModel"),
        ("layer_scale", "BlenderbotForConditionalGeneration"),
        ("scaled(pre_ln, 0.3)", "BlenderbotForConditionalGeneration"),
        ("false_pre_ln(final_norm=True)", "BartForConditionalGeneration"),
    ],
)
def test_what_folds_becomes_a_stock_class(wiring, form, tmp_path):
    model = make_model("seq2seq", wiring=wiring)
    report = addnorm.export(model, to="hf", out=tmp_path / "out")
    assert report.form == form and report.grade == "exact" and report.max_error < 1e-4
    assert report.proof.greedy == (5, 5) == report.proof.beam
