"""`save_pretrained` of stock classes with other norms, and folders that are refused."""

import copy
import pickle
import warnings

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import addnorm
from addnorm.cli.main import main
from addnorm.rewiring.saved_models import rewire_folder
from tests.rewiring.models import DIM, VOCAB, far_from_neutral, ids

transformers = pytest.importorskip("transformers")


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=32, n_embd=DIM, n_layer=2, n_head=2,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return far_from_neutral(transformers.GPT2LMHeadModel(config))


def test_other_norms_are_never_saved_without_a_word(tmp_path):
    result, _ = addnorm.rewire(gpt2(), norm="dyt", calibrate={"input_ids": ids()})
    with pytest.warns(UserWarning, match="GPT2LMHeadModel has the norms dyt, which from_pretrain"):
        result.save_pretrained(tmp_path)
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    with pytest.raises(addnorm.UserError, match="got ones for the norms dyt"):
        addnorm.from_hf(loaded)
    with pytest.raises(addnorm.UserError, match="got ones for the norms dyt"):
        addnorm.load(tmp_path)


def test_exact_weights_fit_until_training_moves_them(tmp_path):
    result, report = addnorm.rewire(gpt2(), norm="rms", calibrate={"input_ids": ids()})
    assert report.grade == "exact"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result.save_pretrained(tmp_path / "exact")
    assert addnorm.load(tmp_path / "exact").config.depth == 2
    with torch.no_grad():  # a step of an optimizer does not keep the stream centered
        result.transformer.wte.weight += 0.3
    with pytest.warns(UserWarning, match="from_pretrained does not build"):
        result.save_pretrained(tmp_path / "trained")


def test_copies_warn_too(tmp_path):
    result, _ = addnorm.rewire(gpt2(), norm="dyt", calibrate={"input_ids": ids()})
    for other in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        with torch.no_grad():
            other.transformer.wte.weight.zero_()
        with pytest.warns(UserWarning, match="has the norms dyt"):
            other.save_pretrained(tmp_path)
        saved = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
        assert not saved.transformer.wte.weight.any()  # the copy was saved, not the original
    assert result.transformer.wte.weight.any()


def test_registered_class_keeps_labels_and_tokens():
    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=DIM, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=40, id2label={0: "bad", 1: "good", 2: "fair"}, pad_token_id=3,
    )  # fmt: skip
    model = far_from_neutral(transformers.BertForSequenceClassification(config))
    result, _ = addnorm.from_hf(model).rewire(norm="dyt", calibrate={"input_ids": ids()})
    back = result.to_hf()
    assert type(back).__name__ == "AddnormForSequenceClassification"
    assert back.config.id2label == {0: "bad", 1: "good", 2: "fair"}
    assert back.config.pad_token_id == 3
    again, _ = addnorm.rewire(back, gate="head", calibrate={"input_ids": ids()})
    assert type(again) is type(back)
    assert again.config.id2label == back.config.id2label
    assert again.config.pad_token_id == 3


def test_folders_are_written_whole(tmp_path, monkeypatch):
    gpt2().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "special_tokens_map.json").write_text("{}")
    target = f"hf:{tmp_path / 'model'}"

    def interrupt(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("addnorm.rewiring.saved_models.write_json", interrupt)
        with pytest.raises(KeyboardInterrupt):
            rewire_folder(target, tmp_path / "out", norm="rms")
    assert [each.name for each in tmp_path.iterdir()] == ["model"]
    rewire_folder(target, tmp_path / "out", norm="rms")  # the same command succeeds afterwards
    names = {each.name for each in (tmp_path / "out").iterdir()}
    assert {"config.json", "model.safetensors", "rewire.json", "special_tokens_map.json"} <= names


def test_command_on_other_folders(tmp_path, capsys):
    folder = tmp_path / "model"
    gpt2().save_pretrained(folder)
    out = ["-o", str(tmp_path / "out")]
    assert main(["rewire", str(folder), "--norm", "rms", *out]) == 2
    assert f"got one of Hugging Face; use hf:{folder}" in capsys.readouterr().err
    engine = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    engine.pre_tokenizer = Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=engine).save_pretrained(folder)
    text = tmp_path / "a.txt"
    text.write_text(" ".join(f"w{i * 7 % VOCAB}" for i in range(100)))  # 32 positions at most
    arguments = ["--norm", "dyt", "--text", str(text), *out]
    assert main(["rewire", f"hf:{folder}", *arguments]) == 0
    assert "naive" in capsys.readouterr().out
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out")("w3 w4").input_ids == [3, 4]


def test_norms_of_gpt_neox_are_shared():
    config = transformers.GPTNeoXConfig(
        vocab_size=VOCAB, hidden_size=DIM, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=40, rotary_pct=0.5, max_position_embeddings=32,
    )  # fmt: skip
    model = far_from_neutral(transformers.GPTNeoXForCausalLM(config))
    result, report = addnorm.from_hf(model).rewire(merge_norms=True, calibrate={"input_ids": ids()})
    assert report.grade == "exact"
    assert result.config.wiring == "parallel"
    other = {"input_ids": ids(3, 9, seed=4)}
    with torch.no_grad():
        expected = model(**other).logits
        assert torch.allclose(result(**other).logits, expected, atol=1e-5)
        assert torch.allclose(result.to_hf()(**other).logits, expected, atol=1e-5)
