"""Round trips: runs, checkpoints, converted models and tokenizers, saved and loaded."""

import huggingface_hub
import pytest
import torch
import transformers

import addnorm
from addnorm.core.errors import UserError
from addnorm.data.tokenizer import END, MASK, START, Tokenizer
from addnorm.decode import DecodingOptions
from addnorm.interop import HFModel, from_hf, save_hf, to_hf_tokenizer
from addnorm.tasks import classify_texts, generate_texts, translate_texts
from addnorm.train import TrainedRun, train
from tests.interop.cases import ENCODERS, GPTS, LLAMAS, PAIRS
from tests.interop.zoo import assert_same_outputs, assert_same_tensors, batch
from tests.train.cases import make_recipe, write_number_corpus

SCRIPTED = "ignore:.torch.jit.script. is deprecated:DeprecationWarning"  # of gpt_bigcode
pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings(SCRIPTED)]

AUTO = {
    "translate": transformers.AutoModelForSeq2SeqLM,
    "lm": transformers.AutoModelForCausalLM,
    "classify": transformers.AutoModelForSequenceClassification,
}
LINES = ["123", "98765", "40"]


@pytest.fixture(scope="module", params=list(AUTO))
def run(request, tmp_path_factory):
    """A trained run, with its weights averaged."""
    task = request.param
    corpus = write_number_corpus(tmp_path_factory.mktemp("corpus"), task)
    folder = tmp_path_factory.mktemp("run")
    train(make_recipe(corpus.folder, task, wiring="deepnorm", ema=0.5), folder)
    return TrainedRun.open(folder, device="cpu")


def test_run_folder_loads(run):
    model = addnorm.load(run.folder)
    assert not model.training and model.config == run.model.config
    for name, value in run.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_checkpoint_folder_loads(run, tmp_path):
    folders = sorted((run.folder / "checkpoints").glob("step-*"))
    loaded = {folder.name: addnorm.load(folder) for folder in folders}
    last = TrainedRun.open(run.folder, device="cpu", which="last")
    assert last.step == 12 and len(loaded) > 1
    for name, value in last.model.state_dict().items():
        assert torch.equal(loaded["step-12"].state_dict()[name], value), name
    other = next(model for name, model in loaded.items() if name != "step-12")
    assert not torch.equal(other.embed.table, last.model.embed.table)


def test_run_saved_for_transformers_gives_our_outputs(run, tmp_path):
    save_hf(run.folder, tmp_path)
    model, info = AUTO[run.task].from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    inputs = tokenizer(LINES, return_tensors="pt", padding=True)
    if run.task == "classify":
        labels = [model.config.id2label[int(index)] for index in model(**inputs).logits.argmax(-1)]
        assert labels == [each.label for each in classify_texts(run, LINES)]
        return
    output = model.generate(**inputs, do_sample=False, max_new_tokens=6)
    texts = [text.strip(" ") for text in tokenizer.batch_decode(output, skip_special_tokens=True)]
    run_task = translate_texts if run.task == "translate" else generate_texts
    options = DecodingOptions(max_new=6)
    assert texts == [each[0].text for each in run_task(run, LINES, options)]
    assert model.generation_config.eos_token_id == (START if run.task == "lm" else END)
    assert model.generation_config.max_new_tokens == run.recipe.max_length


def test_card_of_a_run_has_data_and_metrics(run, tmp_path):
    save_hf(run, tmp_path)
    card = (tmp_path / "README.md").read_text()
    data = huggingface_hub.ModelCard.load(tmp_path / "README.md").data
    assert data.library_name == "transformers" and data.tags == ["addnorm"]
    assert "## Data" in card and "## Metrics" in card and "| records, train | 48 |" in card
    assert "| loss, validation |" in card and "wiring deepnorm" in card


def test_run_is_not_written_into_a_run(run):
    before = {path.name for path in run.folder.iterdir()}
    with pytest.raises(UserError, match="folder: expected another folder than that of a run"):
        save_hf(run, run.folder)
    assert {path.name for path in run.folder.iterdir()} == before


def test_folder_of_transformers_loads_as_an_addnorm_model(run, tmp_path):
    save_hf(run, tmp_path)
    model = addnorm.load(tmp_path)
    assert type(model) is type(run.model)
    for name, value in run.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_sharded_folder_of_transformers_loads(tmp_path):
    model = addnorm.build(kind="lm", vocab=50, dim=16, depth=2, heads=2, seed=0)
    addnorm.to_hf(model).save_pretrained(tmp_path, max_shard_size="10KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert torch.equal(addnorm.load(tmp_path).embed.table, model.embed.table)


def test_saved_model_loads_as_before(tmp_path):
    model = addnorm.build(kind="lm", vocab=50, dim=16, depth=2, heads=2, seed=0)
    model.save(tmp_path)
    assert torch.equal(addnorm.load(tmp_path).embed.table, model.embed.table)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: (path / "x").touch()])
def test_folder_without_a_model(make, tmp_path):
    make(tmp_path)
    with pytest.raises(UserError, match="expected a folder written by save"):
        addnorm.load(tmp_path)


def test_damaged_checkpoint_does_not_load(run, tmp_path):
    folder = tmp_path / "checkpoints" / "step-4"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    with pytest.raises(UserError, match="expected a valid checkpoint; it is damaged"):
        addnorm.load(folder)


QUICK = [ENCODERS[0], ENCODERS[1], GPTS[2], LLAMAS[0], PAIRS[4]]
OTHERS = [case for case in (*ENCODERS, *GPTS, *LLAMAS, *PAIRS) if case not in QUICK]


@pytest.mark.parametrize(
    "case", [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in OTHERS)], ids=str
)
def test_converted_model_is_saved_and_loaded(case, tmp_path):
    original = case.build()
    ours = from_hf(original)
    with torch.no_grad():
        for weight in ours.model.parameters():
            weight.mul_(1.01)
    ours.save(tmp_path)
    again = addnorm.load(tmp_path)
    assert isinstance(again, HFModel) and again.config == ours.config
    assert_same_tensors(ours.to_hf(), again.to_hf())
    inputs = batch(original, "right")
    if original.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = batch(original, seed=3)["input_ids"]
    assert_same_outputs(again.to_hf().eval(), ours.eval(), inputs)


def test_converted_model_without_pooler_is_saved_and_loaded(tmp_path):
    config = transformers.BertConfig(
        vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=32,
    )  # fmt: skip
    ours = from_hf(transformers.BertModel(config, add_pooling_layer=False).eval())
    ours.save(tmp_path)
    assert addnorm.load(tmp_path).model.pooler is None


@pytest.mark.parametrize("case", [GPTS[2], LLAMAS[0], PAIRS[0], PAIRS[4]], ids=str)
def test_converted_model_has_the_loss_of_the_original(case):
    original = case.build().train()
    ours, inputs = from_hf(original), batch(original, "right")
    labels = torch.randint(0, 61, (3, 9)).masked_fill(inputs["attention_mask"] == 0, -100)
    expected = original.eval()(**inputs, labels=labels)
    output = ours.eval()(**inputs, labels=labels)
    torch.testing.assert_close(output.loss, expected.loss, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char"])
@pytest.mark.parametrize("model_kind", ["lm", "seq2seq", "masked_lm", "classifier"])
def test_tokenizer_keeps_its_ids(kind, model_kind, tmp_path):
    corpus = write_number_corpus(tmp_path / "corpus", "lm")
    tokenizer = Tokenizer.train(corpus, kind, vocab=300, special_tokens=(MASK,))
    to_hf_tokenizer(tokenizer, model_kind, max_length=32).save_pretrained(tmp_path / "out")
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    before = [] if model_kind == "seq2seq" else [START]
    after = [END] if model_kind in ("seq2seq", "masked_lm") else []
    is_masked = model_kind == "masked_lm"
    special = () if is_masked else ("</s> 5 <s>", "<pad><unk>", "1 <mask>")
    for line in ("12 34", "", "  7 ", "é 漢 😀\n1", *special):
        [ids] = tokenizer.encode([line])
        assert loaded(line)["input_ids"] == [*before, *ids, *after], line
        assert loaded(line, add_special_tokens=False)["input_ids"] == ids
        text = loaded.decode(ids, skip_special_tokens=True)
        assert text.strip(" ") == tokenizer.decode([ids])[0]
    for line in (
        ("12 <mask> 4", "12<mask>.", "<mask> 4", "<mask>", "a<mask>b  <mask>c.")
        if is_masked
        else ()
    ):
        ids = tokenizer.encode_masked(line)
        assert loaded(line)["input_ids"] == [*before, *ids, *after], line
    assert (loaded.mask_token_id, loaded.model_max_length) == (tokenizer.mask_id, 32)
    assert loaded.padding_side == ("left" if model_kind == "lm" else "right")
