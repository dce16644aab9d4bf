"""Addnorm models as models of transformers: Auto classes, saving, loading, generation, labels."""

import copy
import functools
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

import addnorm
from addnorm.core.errors import UserError
from addnorm.data.tokenizer import END, PAD, START, UNKNOWN
from addnorm.decode import DecodingOptions, Sentence, decode
from addnorm.decode.sampling import filter_tokens
from addnorm.interop import AddnormConfig, AddnormForCausalLM, to_hf
from addnorm.wirings import registry as wirings

pytestmark = pytest.mark.peer

KINDS = {
    "lm": "AutoModelForCausalLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "masked_lm": "AutoModelForMaskedLM",
    "classifier": "AutoModelForSequenceClassification",
}
LENGTH = 6


def build(kind="lm", **changes):
    """Build a model in float64 whose weights are large enough for varied outputs."""
    sizes = {"vocab": 29, "dim": 16, "depth": 2, "heads": 2} | (
        {"classes": 3} if kind == "classifier" else {"tied": False}
    )
    model = addnorm.build(kind=kind, seed=0, **sizes | changes).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.add_(0.3 * noise)
    model.after_step()
    return model


def make_ids(rows=3, length=5):
    return torch.randint(4, 29, (rows, length), generator=torch.Generator().manual_seed(2))


def pad_left(lengths=(5, 2, 4)):
    """Return prompts of different lengths, padded on the left, and their mask."""
    ids = make_ids()
    mask = torch.arange(5) >= 5 - torch.tensor(lengths)[:, None]
    return ids.masked_fill(~mask, PAD), mask.long()


def reload(model, folder, **options):
    to_hf(model).save_pretrained(folder)
    auto = getattr(transformers, KINDS[model.config.kind])
    loaded, info = auto.from_pretrained(folder, output_loading_info=True, **options)
    assert not any(info.values()), info
    return loaded.eval()


def decode_ours(model, prompts, options=None):
    """Decode prompts (or sources) with `addnorm.decode`; return the tokens with the end token."""
    is_pair = model.config.kind == "seq2seq"
    sentences = [
        Sentence((START,) if is_pair else tuple(row), LENGTH, source=tuple(row) if is_pair else ())
        for row in prompts
    ]
    return [
        [(*best.tokens, *([END] if best.ended else [])) for best in bests]
        for bests in decode(model, sentences, options)
    ]


def generated(output, start):
    """Return the new tokens of each row, up to the end token."""
    rows = [row[start:] for row in output.tolist()]
    return [tuple(row[: row.index(END) + 1] if END in row else row) for row in rows]


def check_contract(wiring, kind, folder):
    model = build(kind, wiring=wiring)
    loaded = reload(model, folder)
    assert loaded.model.config == model.config
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], value), name
    ids, mask = pad_left()
    labels = torch.tensor([0, 2, 1]) if kind == "classifier" else ids.masked_fill(mask == 0, -100)
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    output, expected = loaded(**inputs), model(**inputs)
    torch.testing.assert_close(output.loss, expected.loss, rtol=1e-9, atol=1e-9)
    valid = mask.bool() if kind in ("lm", "masked_lm") else ...
    torch.testing.assert_close(output.logits[valid], expected.logits[valid], rtol=1e-9, atol=1e-9)
    if kind in ("lm", "seq2seq"):
        check_generation(model, loaded, ids, mask)


def check_generation(model, loaded, ids, mask):
    is_pair = model.config.kind == "seq2seq"
    if is_pair:  # sources are padded on the right
        ids, mask = ids.flip(1), mask.flip(1)
    prompts = [row[keep.bool()].tolist() for row, keep in zip(ids, mask, strict=True)]
    options = {"attention_mask": mask, "max_new_tokens": LENGTH, "do_sample": False}
    start = 1 if is_pair else ids.shape[1]
    greedy = generated(loaded.generate(ids, **options), start)
    assert greedy == [bests[0] for bests in decode_ours(model, prompts)]
    assert greedy == generated(loaded.generate(ids, use_cache=False, **options), start)
    beams = generated(loaded.generate(ids, num_beams=3, length_penalty=0.0, **options), start)
    ours = decode_ours(model, prompts, DecodingOptions(beam=3, length_penalty=0.0))
    assert beams == [bests[0] for bests in ours]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wiring", ["post_ln", "hyper", "ngpt"])
def test_contract_of_some_wirings(wiring, kind, tmp_path):
    check_contract(wiring, kind, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wiring", list(wirings))
def test_contract(wiring, kind, tmp_path):
    check_contract(wiring, kind, tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"positions": "t5"},
        {"positions": "alibi", "kv_heads": 1},
        {"positions": "rotary", "qk_norm": "rms_head"},
        {"positions": "learned(length=16)", "window": (3, None)},
        {"positions": "none", "cap": 5.0, "head_cap": 8.0},
        {"embed_norm": "layer", "embed_scale": "sqrt_dim", "activation": "swiglu"},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["lm", "seq2seq"])
def test_generation_with_options(kind, options):
    model = build(kind, **options)
    check_generation(model, to_hf(model), *pad_left())


@pytest.mark.parametrize("kind", ["lm", "seq2seq"])
def test_beam_search_with_mean_score(kind):
    model = build(kind)
    ids, start = make_ids(), 1 if kind == "seq2seq" else 5
    output = to_hf(model).generate(
        ids, max_new_tokens=LENGTH, num_beams=4, length_penalty=1.0, do_sample=False
    )
    options = DecodingOptions(beam=4, length_penalty="mean", stop="exact")
    ours = decode_ours(model, ids.tolist(), options)
    assert generated(output, start) == [bests[0] for bests in ours]


def test_sampling_has_our_distribution():
    """Scores after the filters of transformers are the log-probabilities that we sample from."""
    model = build("lm")
    ids = make_ids()
    output = to_hf(model).generate(
        ids,
        max_new_tokens=1,
        do_sample=True,
        temperature=0.7,
        top_k=8,
        top_p=0.8,
        output_scores=True,
        return_dict_in_generate=True,
    )
    logits = model(ids)[:, -1].clone()
    logits[:, [PAD, START, UNKNOWN]] = -torch.inf
    expected = torch.zeros_like(logits)
    p, index = filter_tokens(logits, DecodingOptions(temperature=0.7, top_k=8, top_p=0.8))
    expected.scatter_(1, index, p)
    torch.testing.assert_close(output.scores[0].softmax(-1), expected.float())
    assert ((expected > 0).sum(1) < 9).all()


@pytest.mark.parametrize("kind", ["lm", "seq2seq"])
def test_generation_of_one_token_at_a_time_continues_a_cache(kind):
    model = build(kind)
    converted = to_hf(model)
    ids, source = make_ids(), make_ids(length=4)
    names = ("decoder_input_ids", {"input_ids": source}) if kind == "seq2seq" else ("input_ids", {})
    first = converted(**{names[0]: ids[:, :3], **names[1]}, use_cache=True)
    assert first.past_key_values.get_seq_length() == 3
    second = converted(**{names[0]: ids[:, 3:], **names[1]}, past_key_values=first.past_key_values)
    expected = model(source, ids) if kind == "seq2seq" else model(ids)
    torch.testing.assert_close(torch.cat((first.logits, second.logits), 1), expected)


def test_logits_to_keep():
    converted, ids = to_hf(build("lm")), make_ids()
    logits = converted(input_ids=ids).logits
    torch.testing.assert_close(converted(input_ids=ids, logits_to_keep=2).logits, logits[:, -2:])
    index = torch.tensor([0, 3])
    torch.testing.assert_close(
        converted(input_ids=ids, logits_to_keep=index).logits, logits[:, index]
    )


def test_static_cache_is_rejected():
    with pytest.raises(
        UserError, match="past_key_values: expected a DynamicCache, got StaticCache"
    ):
        to_hf(build("lm")).generate(make_ids(), max_new_tokens=2, cache_implementation="static")


def test_wrapper_shares_the_weights():
    model = build("lm")
    converted = to_hf(model)
    assert converted.model is model
    names = dict(converted.named_parameters())
    assert all(names[f"model.{name}"] is weight for name, weight in model.named_parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_loading_in_another_dtype(dtype, tmp_path):
    loaded = reload(build("lm"), tmp_path, dtype=dtype)
    assert {weight.dtype for weight in loaded.parameters()} == {dtype}
    assert loaded.dtype == dtype and loaded(input_ids=make_ids()).logits.isfinite().all()


def test_weights_are_sharded(tmp_path):
    model = build("lm")
    to_hf(model).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(loaded(input_ids=make_ids()).logits, model(make_ids()))


def test_edited_arrangement_does_not_load(tmp_path):
    to_hf(build("lm", wiring="pre_ln")).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    values["model"]["wiring"] = "ln_scaling"  # has the same tensors
    path.write_text(json.dumps(values))
    with pytest.raises(Exception, match="arrangement"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_missing_weight_does_not_load(tmp_path):
    to_hf(build("lm")).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.head.table"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(UserError, match="expected all weights of AddnormForCausalLM, got none of"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


@pytest.mark.slow
def test_remote_code_without_registration(tmp_path):
    """A process that never imports addnorm.interop loads the folder with trust_remote_code."""
    to_hf(build("lm").float()).save_pretrained(tmp_path)
    code = (
        "import transformers, sys; "
        f"model = transformers.AutoModelForCausalLM.from_pretrained({str(tmp_path)!r}, "
        "trust_remote_code=True); assert type(model).__name__ == 'AddnormForCausalLM'; "
        "print(model.generate(max_new_tokens=2).shape)"
    )
    environment = {"HF_HOME": str(tmp_path / "cache"), "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "torch.Size([1, 3])" in done.stdout


def test_card_describes_the_arrangement(tmp_path):
    to_hf(build("seq2seq", encoder_wiring="b2t", wiring="deepnorm")).save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    assert "wiring b2t" in card and "wiring deepnorm" in card and "arrangement.svg" in card
    assert (tmp_path / "arrangement.svg").read_text().startswith("<svg")
    (tmp_path / "README.md").write_text("mine")
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path).save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


class FakeHub:
    """Hub that remembers what was uploaded."""

    def __init__(self, uploads, token=None):
        self.uploads, self.token = uploads, token

    def create_repo(self, repo_id, private, exist_ok):
        return types.SimpleNamespace(repo_id=f"me/{repo_id}")

    def upload_folder(self, repo_id, folder_path, **options):
        files = {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}
        self.uploads.append((repo_id, self.token, options, files))


def test_uploads_have_our_card(tmp_path, monkeypatch):
    uploads = []
    monkeypatch.setattr("addnorm.interop.auto.base.HfApi", functools.partial(FakeHub, uploads))
    model = to_hf(build("lm"))
    model.push_to_hub("one", token="secret", commit_message="first")
    model.save_pretrained(tmp_path / "two", push_to_hub=True)
    (first, token, options, files), (second, _, _, more) = uploads
    assert (first, second, token, options) == (
        "me/one",
        "me/two",
        "secret",
        {"commit_message": "first"},
    )
    assert files.keys() == more.keys() >= {"README.md", "modeling_addnorm.py", "model.safetensors"}
    assert b"wiring pre_ln" in files["README.md"]


def test_number_of_labels_is_that_of_the_model(tmp_path):
    to_hf(build("classifier")).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="num_labels: expected 3, the classes of the model, got 5"):
        transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=5)


def test_config_round_trip(tmp_path):
    config = AddnormConfig(build("classifier").config, id2label={0: "a", 1: "b", 2: "c"})
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert loaded.model_config == config.model_config and loaded.id2label == {
        0: "a",
        1: "b",
        2: "c",
    }
    assert (loaded.vocab_size, loaded.num_labels, loaded.num_hidden_layers) == (29, 3, 2)


def test_new_model_from_config():
    model = AutoModelForCausalLM.from_config(AddnormConfig(build("lm").config))
    assert (
        isinstance(model, AddnormForCausalLM)
        and model(input_ids=make_ids()).logits.isfinite().all()
    )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            lambda: build("prefix_lm"),
            "expected one of the kinds lm, seq2seq, masked_lm, classifier",
        ),
        (lambda: build("classifier", classes=None), "got classifier without classes"),
        (
            lambda: build("classifier", pooling="none"),
            "expected pooling cls or mean for AddnormForSeq",
        ),
        (lambda: torch.nn.Linear(2, 2), "model: expected an addnorm model, got Linear"),
    ],
)
def test_models_without_a_class(model, message):
    with pytest.raises(UserError, match=message):
        to_hf(model())


def test_class_of_another_kind(tmp_path):
    to_hf(build("masked_lm")).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="expected a model of kind 'lm' for AddnormForCausalLM"):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_images(tmp_path):
    model = addnorm.build(
        kind="classifier", dim=16, depth=1, heads=2, image=8, patch=4, classes=3, seed=0
    ).eval()
    to_hf(model).save_pretrained(tmp_path)
    loaded = transformers.AutoModelForImageClassification.from_pretrained(tmp_path).eval()
    pixels = torch.randn(2, 3, 8, 8)
    output = loaded(pixel_values=pixels, labels=torch.tensor([0, 2]))
    assert torch.equal(output.logits, model(pixels)) and output.loss.isfinite()


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing(kind):
    converted = to_hf(build(kind)).train()
    labels = torch.tensor([0, 2, 1]) if kind == "classifier" else make_ids()
    gradients = []
    for enable in (False, True):
        if enable:
            converted.gradient_checkpointing_enable()
        assert converted.is_gradient_checkpointing is enable
        converted.zero_grad()
        converted(input_ids=make_ids(), labels=labels).loss.backward()
        gradients.append([weight.grad.clone() for weight in converted.parameters()])
    assert all(map(torch.equal, *gradients))
    converted.gradient_checkpointing_disable()
    assert not converted.is_gradient_checkpointing


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
def test_problem_types(problem):
    classes = 1 if problem == "regression" else 3
    converted = to_hf(build("classifier", classes=classes), problem_type=problem)
    labels = torch.ones(3, dtype=torch.long) if classes == 1 else torch.eye(3, dtype=torch.long)
    logits = converted(input_ids=make_ids()).logits
    loss = torch.nn.MSELoss() if classes == 1 else torch.nn.BCEWithLogitsLoss()
    expected = loss(logits.view(labels.shape), labels.double())
    torch.testing.assert_close(converted(input_ids=make_ids(), labels=labels).loss, expected)


def test_deep_copy():
    converted = to_hf(build("lm"))
    copied = copy.deepcopy(converted)
    assert torch.equal(copied(input_ids=make_ids()).logits, converted(input_ids=make_ids()).logits)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"inputs_embeds": torch.zeros(1, 2, 16)}, "inputs_embeds: expected one of"),
        ({"input_ids": make_ids(), "foo": 3}, "foo: expected no such input for AddnormForCausalLM"),
        ({"input_ids": make_ids(), "output_hidden_states": True}, "output_hidden_states: expected"),
        ({}, "input_ids: expected a tensor, got none"),
        (
            {"input_ids": make_ids(), "attention_mask": torch.ones(3, 9)},
            r"attention_mask: expected shape \(3, 5\), that of all tokens, got \(3, 9\)",
        ),
    ],
)
def test_wrong_inputs(inputs, message):
    with pytest.raises(UserError, match=message):
        to_hf(build("lm"))(**inputs)


def test_resizing_and_converting_again_are_rejected():
    converted = to_hf(build("lm"))
    assert converted.resize_token_embeddings(29) is converted.get_input_embeddings()
    with pytest.raises(UserError, match=r"new_num_tokens: expected 29, .*, got 40"):
        converted.resize_token_embeddings(40)
    with pytest.raises(UserError, match="got AddnormForCausalLM; use its attribute model"):
        addnorm.from_hf(converted)


def test_assisted_generation_equals_greedy():
    converted, assistant = to_hf(build("lm")), to_hf(build("lm", depth=1))
    ids, options = make_ids(rows=1), {"max_new_tokens": LENGTH, "do_sample": False}
    expected = converted.generate(ids, **options)
    assert torch.equal(converted.generate(ids, assistant_model=assistant, **options), expected)
    assert torch.equal(converted.generate(ids, prompt_lookup_num_tokens=2, **options), expected)
