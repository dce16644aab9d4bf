"""Models of transformers: in their own class, converted, and back."""

import json

import pytest
import torch

import addnorm
from addnorm.cli.main import main
from tests.rewiring.models import DIM, VOCAB, far_from_neutral, fingerprint, ids

transformers = pytest.importorskip("transformers")


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=32, n_embd=DIM, n_layer=2, n_head=2,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return far_from_neutral(transformers.GPT2LMHeadModel(config))


def bert():
    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=DIM, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=40,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config).eval()


def vit():
    config = transformers.ViTConfig(
        hidden_size=DIM, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40,
        image_size=8, patch_size=4,
    )  # fmt: skip
    return far_from_neutral(transformers.ViTForImageClassification(config))


def outputs(model, batch):
    with torch.no_grad():
        return model.eval()(**batch).logits


def test_gpt2_keeps_its_class(tmp_path):
    model, batch = gpt2(), {"input_ids": ids(), "labels": ids()}
    before = fingerprint(model)
    result, report = addnorm.rewire(model, norm="rms", example_inputs=batch)
    assert report.grade == "exact"
    assert type(result) is type(model)
    assert fingerprint(model) == before
    assert model.config.tie_word_embeddings
    assert report.loss_before == pytest.approx(float(model(**batch).loss.detach()), rel=1e-5)
    for shape in ((3, 11), (1, 3)):
        other = {"input_ids": ids(*shape, seed=9)}
        assert torch.allclose(outputs(model, other), outputs(result, other), atol=1e-5)
    # Centered weights are right for the LayerNorm of the stock class, too.
    result.save_pretrained(tmp_path)
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    other = {"input_ids": ids(3, 9)}
    assert torch.allclose(outputs(model, other), outputs(loaded, other), atol=1e-5)


def test_bert_is_exact_only_with_constant_gains():
    batch = {"input_ids": ids(), "attention_mask": torch.ones_like(ids())}
    model = bert().bert
    _, report = addnorm.rewire(model, norm="rms", example_inputs=batch)
    assert report.grade == "exact"
    _, report = addnorm.rewire(far_from_neutral(model), norm="rms", example_inputs=batch)
    assert report.grade == "fitted"
    assert report.loss_after < report.loss_naive


def test_vit_is_exact():
    pixels = torch.randn(2, 3, 8, 8)
    model = vit()
    result, report = addnorm.rewire(model, norm="rms", example_inputs=pixels)
    assert report.grade == "exact"
    batch = {"pixel_values": torch.randn(3, 3, 8, 8)}
    assert torch.allclose(outputs(model, batch), outputs(result, batch), atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "grade", "class_name"),
    [
        ({"depth": 4}, "equal_at_start", "GPT2LMHeadModel"),
        ({"norm": "rms"}, "exact", "AddnormForCausalLM"),
        ({"wiring": "layer_scale", "depth": 4}, "equal_at_start", "AddnormForCausalLM"),
        ({"qk_norm": "rms"}, "fitted", "AddnormForCausalLM"),
    ],
    ids=["depth", "norm", "wiring", "qk_norm"],
)
def test_back_to_transformers(changes, grade, class_name, tmp_path):
    model, batch = gpt2(), {"input_ids": ids()}
    result, report = addnorm.from_hf(model).rewire(calibrate=batch, **changes)
    assert report.grade == grade
    if grade != "fitted":
        assert torch.allclose(outputs(model, batch), outputs(result, batch), atol=1e-5)
    back = result.to_hf()
    assert type(back).__name__ == class_name
    assert torch.allclose(outputs(back, batch), outputs(result, batch), atol=1e-5)
    result.save(tmp_path)
    loaded = addnorm.load(tmp_path)
    assert torch.allclose(outputs(loaded, batch), outputs(result, batch), atol=1e-5)


def test_stock_model_is_converted_where_sites_are_needed():
    model = gpt2()
    before = fingerprint(model)
    batch = {"input_ids": ids(), "labels": ids()}
    result, report = addnorm.rewire(model, wiring="layer_scale", depth=4, calibrate=batch)
    assert report.grade == "equal_at_start"
    assert report.loss_after == pytest.approx(report.loss_before, rel=1e-5)
    assert torch.allclose(outputs(model, batch), outputs(result, batch), atol=1e-5)
    assert fingerprint(model) == before


def test_changed_weights_are_never_written_as_another_model():
    result, _ = addnorm.from_hf(gpt2()).rewire(norm="rms", calibrate={"input_ids": ids()})
    result.model.decoder.wiring.final_norm = torch.nn.Identity()
    with pytest.raises(addnorm.UserError, match="as its config describes"):
        result.to_hf()


def test_registered_class_stays_one():
    model = addnorm.to_hf(
        far_from_neutral(addnorm.build(kind="lm", vocab=VOCAB, dim=DIM, depth=2, heads=2))
    )
    result, report = addnorm.rewire(model, norm="rms", example_inputs={"input_ids": ids()})
    assert type(result) is type(model)
    assert report.grade == "exact"


def test_command(tmp_path, capsys):
    gpt2().save_pretrained(tmp_path / "model")
    target, out = f"hf:{tmp_path / 'model'}", tmp_path / "out"
    assert main(["rewire", target, "--norm", "rms", "-o", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["grade"] == "exact"
    assert report == json.loads((out / "rewire.json").read_text()) or report["max_error"] < 1e-10
    assert addnorm.load(out).config.norm == "rms(eps=1e-05, bias=True)"
    for arguments, message in (
        (["--norm", "rms", "-o", str(out)], "out: expected a new or empty folder"),
        (["--norm", "dyt", "-o", str(tmp_path / "a")], "text: expected a text file"),
        (["-o", str(tmp_path / "b")], "rewire: expected one of norm, qk_norm, wiring, depth"),
    ):
        assert main(["rewire", target, *arguments]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
