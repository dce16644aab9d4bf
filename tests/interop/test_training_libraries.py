"""Models in the training loops of other libraries: Trainer, accelerate, PEFT, Lightning, SWA."""

import copy

import accelerate
import lightning
import peft
import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

import addnorm
from addnorm.core.errors import UserError
from addnorm.data.tokenizer import END, PAD, START

pytestmark = pytest.mark.peer

SIZES = {"vocab": 31, "dim": 16, "depth": 2, "heads": 2}
KINDS = ["lm", "masked_lm", "seq2seq", "classifier"]


@pytest.fixture(autouse=True)
def fresh_accelerator():
    """Forget the precision that an earlier test chose for the whole process."""
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def build(kind, **changes):
    classes = {"classes": 3} if kind == "classifier" else {}
    return addnorm.build(kind=kind, seed=0, **SIZES | classes | changes)


def make_rows(kind, *, padding=True, count=12):
    """Return rows of a dataset as tokenizers and collators of transformers make them."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for number in range(count):
        ids = torch.randint(4, 31, (6,), generator=generator)
        mask = torch.arange(6) < (6 - number % 3 if padding else 6)
        labels = ids.masked_fill(~mask, -100)
        if kind == "masked_lm":
            labels = labels.masked_fill(torch.arange(6) % 2 == 0, -100)
        row = {"input_ids": ids.masked_fill(~mask, PAD), "attention_mask": mask.long()}
        rows.append(row | {"labels": labels if kind != "classifier" else number % 3})
    return rows


def make_trainer(model, kind, folder, rows=None, **arguments):
    arguments = {
        "per_device_train_batch_size": 4,
        "max_steps": 4,
        "learning_rate": 1e-2,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "seed": 3,
    } | arguments
    rows = make_rows(kind) if rows is None else rows
    return transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(output_dir=str(folder), **arguments),
        train_dataset=rows,
        eval_dataset=rows[:4],
    )


def reference_loss(model, kind, batch, smoothing=0.0, reduction="mean"):
    """Compute the loss from a plain call, independently of `model.compute_loss`."""
    ids, mask, labels = batch["input_ids"], batch["attention_mask"].bool(), batch["labels"]
    if kind == "seq2seq":
        start = torch.full((len(ids), 1), START)
        target = torch.cat((start, labels[:, :-1].clamp(min=PAD)), 1)
        logits = model(ids, target, source_mask=mask)
    else:
        logits = model(ids, mask=mask)
    if kind == "lm":
        logits, labels = logits[:, :-1], labels[:, 1:]
    logits = logits.flatten(0, -2)
    return F.cross_entropy(logits, labels.flatten(), label_smoothing=smoothing, reduction=reduction)


def make_batch(kind, **options):
    rows = make_rows(kind, **options)[:4]
    return {name: torch.stack([torch.as_tensor(row[name]) for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("padding", [True, False], ids=["padded", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_labels_give_the_loss_of_a_plain_call(kind, padding):
    model, batch = build(kind), make_batch(kind, padding=padding)
    output = model(**batch)
    expected = reference_loss(model, kind, batch)
    torch.testing.assert_close(output.loss, expected)
    assert output["loss"] is output.loss is output[0]
    assert output.logits is output[1] and list(output) == ["loss", "logits"]
    loss, logits = model(**batch, return_dict=False)
    torch.testing.assert_close((loss, logits), (output.loss, output.logits))


@pytest.mark.parametrize("kind", KINDS)
def test_keyword_call_without_labels_has_the_bits_of_a_plain_call(kind):
    model, batch = build(kind), make_batch(kind)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    pair, names = ((ids,), {"decoder_input_ids": ids}) if kind == "seq2seq" else ((), {})
    output = model(input_ids=ids, attention_mask=mask, **names)
    mask_name = "source_mask" if kind == "seq2seq" else "mask"
    assert output.loss is None and list(output) == ["logits"]
    assert torch.equal(output.logits, model(ids, *pair, **{mask_name: mask.bool()}))
    full = model(input_ids=ids, attention_mask=torch.ones_like(ids), **names)
    assert torch.equal(full.logits, model(ids, *pair))


def test_defaults_of_special_tokens_are_those_of_our_tokenizers():
    config = build("seq2seq").config
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (PAD, START, END)
    assert config.decoder_start_token_id == START


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("kind", KINDS)
def test_trainer_takes_the_steps_of_a_hand_written_loop(kind, smoothing, tmp_path):
    """SGD in 2 steps of 2 accumulated micro-batches; the loss is a mean over both of them."""
    model = build(kind)
    by_hand = copy.deepcopy(model)
    rows = make_rows(kind)
    if kind == "seq2seq" and smoothing:  # the Trainer takes the labels away: the collator shifts
        for row in rows:
            row["decoder_input_ids"] = by_hand.prepare_decoder_input_ids_from_labels(
                row["labels"][None]
            )[0]
    trainer = make_trainer(
        model,
        kind,
        tmp_path,
        rows,
        max_steps=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        optim="sgd",
        learning_rate=0.1,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        train_sampling_strategy="sequential",
        label_smoothing_factor=smoothing,
    )
    trainer.train()
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    for step in range(2):
        chosen = rows[4 * step : 4 * step + 4]
        batch = {
            name: torch.stack([torch.as_tensor(row[name]) for row in chosen])
            for name in ("input_ids", "attention_mask", "labels")
        }
        optimizer.zero_grad()
        reference_loss(by_hand, kind, batch, smoothing).backward()
        optimizer.step()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(
            weight, by_hand.get_parameter(name), rtol=1e-4, atol=1e-6, msg=name
        )


@pytest.mark.parametrize("kind", KINDS)
def test_trainer_evaluates_and_resumes(kind, tmp_path):
    def new_trainer(steps):
        model = build(kind, dropout=0.1)
        return make_trainer(
            model, kind, tmp_path, max_steps=steps, save_strategy="steps", save_steps=2
        )

    whole = new_trainer(4)
    whole.train()
    prediction = whole.predict(whole.eval_dataset)
    with torch.no_grad():
        expected = whole.model.eval()(**make_batch(kind))
    assert prediction.metrics["test_loss"] == pytest.approx(float(expected.loss), rel=1e-5)
    torch.testing.assert_close(torch.tensor(prediction.predictions), expected.logits)
    again = new_trainer(4)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], weight), name


def test_trainer_with_tokenizer_aligns_special_tokens(tmp_path):
    engine = addnorm.data.tokenizer.Engine(
        addnorm.data.tokenizer.models.WordLevel({"a": 0, "<p>": 7, "<e>": 9}, unk_token="a")
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=engine, pad_token="<p>", eos_token="<e>"
    )
    model, rows = build("lm"), make_rows("lm")
    trainer = make_trainer(model, "lm", tmp_path, rows, max_steps=1)
    trainer.processing_class = tokenizer
    before = model.config.model_copy()
    trainer.train()
    assert (model.config.pad_token_id, model.config.eos_token_id) == (
        tokenizer.pad_token_id,
        tokenizer.eos_token_id,
    )
    assert model.config == before and model.config.to_dict() == before.to_dict()


def test_config_accepts_settings_of_trainers_only():
    config = build("lm").config
    config.use_cache = False
    assert config.use_cache is False and build("lm").config.use_cache is None
    with pytest.raises(ValueError, match="frozen"):
        config.wiring = "b2t"
    with pytest.raises(ValueError, match=r"frozen|no field"):
        config.wirng = "b2t"


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing_has_equal_gradients(kind):
    model, batch = build(kind, dropout=0.2), make_batch(kind)
    gradients = {}
    for enable in (False, True):
        model.zero_grad()
        if enable:
            model.gradient_checkpointing_enable(
                gradient_checkpointing_kwargs={"use_reentrant": False}
            )
        assert model.is_gradient_checkpointing is enable
        torch.manual_seed(0)
        model(**batch).loss.backward()
        gradients[enable] = [weight.grad.clone() for weight in model.parameters()]
    assert all(map(torch.equal, *gradients.values()))
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing


def test_gradient_checkpointing_saves_fewer_tensors():
    def count_saved(model):
        saved = []
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: saved.append(tensor.numel()) or tensor, lambda tensor: tensor
        )
        with hooks:
            model(**make_batch("lm"))
        return sum(saved)

    model = build("lm")
    before = count_saved(model)
    model.gradient_checkpointing_enable()
    assert count_saved(model) < before / 2


def test_gradient_checkpointing_refuses_what_it_cannot_do():
    model = build("lm")
    with pytest.raises(UserError, match="expected use_reentrant=False, got use_reentrant=True"):
        model.gradient_checkpointing_enable({"use_reentrant": True})
    assert not model.is_gradient_checkpointing


def test_trainer_switches_gradient_checkpointing_on(tmp_path):
    trainer = make_trainer(build("lm"), "lm", tmp_path, max_steps=1, gradient_checkpointing=True)
    trainer.train()
    assert trainer.model.is_gradient_checkpointing


def test_constraints_of_a_wiring_hold_after_every_step(tmp_path):
    model = build("lm", wiring="ngpt")
    trainer = make_trainer(model, "lm", tmp_path)
    trainer.add_callback(addnorm.interop.AfterStepCallback())
    trainer.train()
    normalized = copy.deepcopy(model)
    normalized.after_step()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, normalized.get_parameter(name), msg=name)
    without = make_trainer(build("lm", wiring="ngpt"), "lm", tmp_path)
    without.train()
    assert not torch.allclose(without.model.embed.table, model.embed.table, atol=1e-3)


def test_trainer_adds_noise_to_embeddings(tmp_path):
    plain, noisy = (
        make_trainer(build("lm"), "lm", tmp_path, max_steps=1, neftune_noise_alpha=noise)
        for noise in (None, 5.0)
    )
    plain.train(), noisy.train()
    assert not torch.equal(plain.model.embed.table, noisy.model.embed.table)


@pytest.mark.parametrize("task", [None, "CAUSAL_LM"])
def test_lora_trains_saves_loads_and_merges(task, tmp_path):
    base, batch = build("lm", activation="swiglu"), make_batch("lm")
    frozen = copy.deepcopy(base.state_dict())
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"], task_type=task
    )
    model = peft.get_peft_model(base, config)
    before = model(**batch).logits
    make_trainer(model, "lm", tmp_path / "trainer").train()
    trained = model.eval()(**batch).logits
    assert not torch.allclose(before, trained, atol=1e-3)
    with torch.no_grad():  # kernels without gradients must not bypass the adapters
        torch.testing.assert_close(model(**batch).logits, trained)
    model.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(build("lm", activation="swiglu"), tmp_path / "adapter")
    torch.testing.assert_close(again.eval()(**batch).logits, trained)
    merged = again.merge_and_unload()
    torch.testing.assert_close(merged.eval()(**batch).logits, trained, atol=1e-5, rtol=1e-4)
    assert type(merged) is addnorm.LanguageModel
    changed = [
        name for name, value in merged.state_dict().items() if not torch.equal(value, frozen[name])
    ]
    assert changed and all(name.split(".")[-2] in config.target_modules for name in changed)


def test_lora_with_gradient_checkpointing(tmp_path):
    model = peft.get_peft_model(
        build("lm"), peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    )
    gradients = []
    for enable in (False, True):
        if enable:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        model(**make_batch("lm")).loss.backward()
        gradients.append([w.grad.clone() for w in model.parameters() if w.requires_grad])
    assert gradients[0] and all(map(torch.equal, *gradients))


@pytest.mark.parametrize("kind", KINDS)
def test_accelerate_prepares_with_mixed_precision(kind):
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    model, batch = build(kind), make_batch(kind)
    expected = model(**batch).loss.item()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prepared, optimizer = accelerator.prepare(model, optimizer)
    loss = prepared(**batch).loss
    assert loss.item() == pytest.approx(expected, rel=0.05)
    accelerator.backward(loss)
    optimizer.step()
    assert accelerator.unwrap_model(prepared)(**batch).loss.item() < expected


class LightningModule(lightning.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch, index):
        loss = self.model(**batch).loss
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore")  # of Lightning about itself
def test_lightning_trains(tmp_path):
    module = LightningModule(build("seq2seq"))
    rows = [make_batch("seq2seq")] * 4
    before = module.model(**rows[0]).loss.item()
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(module, torch.utils.data.DataLoader(rows, batch_size=None))
    assert module.model(**rows[0]).loss.item() < before


@pytest.mark.parametrize("kind", KINDS)
def test_averaged_model(kind):
    model, batch = build(kind), make_batch(kind)
    average = AveragedModel(model)
    average.update_parameters(model)
    start = {name: value.clone() for name, value in model.named_parameters()}
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(1.0)
    average.update_parameters(model)
    for name, weight in average.module.named_parameters():
        torch.testing.assert_close(weight, start[name] + 0.5)
    assert average(**batch).loss.isfinite()


def test_facts_about_weights():
    model = build("lm", tied=False)
    tables = model.embed.table.numel() + model.head.table.numel()
    total = sum(weight.numel() for weight in model.parameters())
    assert model.num_parameters() == total
    assert model.num_parameters(exclude_embeddings=True) == total - tables
    model.head.table.requires_grad_(False)
    assert model.num_parameters(only_trainable=True) == total - model.head.table.numel()
    assert model.get_input_embeddings() is model.embed
    assert (model.device.type, model.bfloat16().dtype) == ("cpu", torch.bfloat16)


@pytest.mark.parametrize(
    ("kind", "inputs", "message"),
    [
        ("lm", {"labels": 3}, "input_ids: expected a tensor for LanguageModel, got none"),
        ("seq2seq", {"input_ids": 6}, "decoder_input_ids: expected a tensor for Seq2Seq"),
        ("lm", {"input_ids": 6, "labels": 5}, r"labels: expected integers of shape \(2, 6\)"),
        ("lm", {"input_ids": 6, "ids": 6}, "expected ids once, got it twice"),
        ("lm", {"input_ids": 6, "attention_mask": 7}, "attention_mask: expected the shape of its"),
        ("lm", {"input_ids": 6, "inputs_embeds": 6}, "inputs_embeds: expected one of"),
        ("lm", {"input_ids": 6, "position_ids": 5}, "position_ids: expected a shape that expands"),
        ("masked_lm", {"input_ids": 6, "token_type_ids": 6}, "type_ids: expected None for a model"),
    ],
)
def test_wrong_keyword_inputs(kind, inputs, message):
    tensors = {name: torch.ones(2, length, dtype=torch.long) for name, length in inputs.items()}
    with pytest.raises(UserError, match=message):
        build(kind)(**tensors)


def test_labels_of_a_model_without_classes_are_rejected():
    model = build("classifier", classes=None)
    ids = torch.ones(2, 3, dtype=torch.long)
    assert model(input_ids=ids).last_hidden_state.shape == (2, 3, 16)
    with pytest.raises(UserError, match="labels: expected a model with classes"):
        model(input_ids=ids, labels=torch.zeros(2, dtype=torch.long))


@pytest.mark.parametrize("classes", [1, 3])
def test_floating_point_labels(classes):
    model, ids = build("classifier", classes=classes), make_batch("classifier")["input_ids"]
    labels = torch.rand(4) if classes == 1 else (torch.rand(4, 3) > 0.5).float()
    logits = model(ids)
    loss = nn.MSELoss() if classes == 1 else nn.BCEWithLogitsLoss()
    expected = loss(logits.view(labels.shape), labels)
    torch.testing.assert_close(model(input_ids=ids, labels=labels).loss, expected)


def test_images_by_keyword():
    model = addnorm.build(
        kind="classifier", dim=16, depth=1, heads=2, image=8, patch=4, classes=3, seed=0
    )
    pixels = torch.randn(2, 3, 8, 8)
    output = model(pixel_values=pixels, labels=torch.tensor([0, 2]))
    assert torch.equal(output.logits, model(pixels)) and output.loss.isfinite()


@pytest.mark.parametrize("kind", KINDS)
def test_keyword_calls_compile_to_one_graph(kind):
    model, batch = build(kind), make_batch(kind)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    output = compiled(**batch)
    torch.testing.assert_close(output.loss, model(**batch).loss)


def test_output_passes_through_containers_of_torch():
    output = build("lm")(**make_batch("lm"))
    leaves, spec = torch.utils._pytree.tree_flatten(output)
    assert leaves == [output.loss, output.logits]
    again = torch.utils._pytree.tree_unflatten(leaves, spec)
    assert type(again) is type(output) and again.loss is output.loss
    doubled = accelerate.utils.recursively_apply(lambda tensor: tensor.double(), output)
    assert doubled.logits.dtype == torch.float64


def test_batch_without_targets_has_no_loss():
    model, batch = build("lm"), make_batch("lm")
    loss = model(**batch | {"labels": torch.full_like(batch["labels"], -100)}).loss
    loss.backward()
    assert loss.item() == 0 and all(not weight.grad.any() for weight in model.parameters())


def test_adapters_are_merged_before_saving(tmp_path):
    model = peft.get_peft_model(build("lm"), peft.LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(UserError, match=r"got peft\..*; merge or remove adapters"):
        model.get_base_model().save(tmp_path)
    model.merge_and_unload().save(tmp_path)


@pytest.mark.parametrize(
    "kind", ["lm", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])]
)
def test_converted_classes_train_and_resume(kind, tmp_path):
    models = [addnorm.to_hf(build(kind, dropout=0.1)) for _ in range(2)]
    options = {"save_strategy": "steps", "save_steps": 2}
    make_trainer(models[0], kind, tmp_path, **options).train()
    second = make_trainer(models[1], kind, tmp_path)
    second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for name, weight in models[0].state_dict().items():
        assert torch.equal(models[1].state_dict()[name], weight), name
    assert type(addnorm.load(tmp_path / "checkpoint-2")) is type(models[0].model)


def test_label_smoothing_of_converted_classes(tmp_path):
    """The Trainer shifts the labels of both classes."""
    losses = [
        make_trainer(model, "lm", tmp_path, label_smoothing_factor=0.1).train().training_loss
        for model in (build("lm"), addnorm.to_hf(build("lm")))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_lora_on_a_converted_class_generates_and_merges(tmp_path):
    model = peft.get_peft_model(
        addnorm.to_hf(build("seq2seq")),
        peft.LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules="all-linear"),
    )
    batch = make_batch("seq2seq")
    model(**batch).loss.backward()
    ids = model.generate(input_ids=batch["input_ids"], max_new_tokens=3)
    assert ids.shape[0] == 4 and (ids[:, 0] == START).all()
    model.merge_and_unload().save_pretrained(tmp_path)
    assert type(addnorm.load(tmp_path)) is addnorm.Seq2Seq


def test_trainer_evaluates_by_generation(tmp_path):
    rows = make_rows("seq2seq")
    arguments = transformers.Seq2SeqTrainingArguments(
        output_dir=str(tmp_path), report_to=[], use_cpu=True, disable_tqdm=True,
        predict_with_generate=True,
    )  # fmt: skip
    model = addnorm.to_hf(build("seq2seq")).eval()
    trainer = transformers.Seq2SeqTrainer(model=model, args=arguments)
    predictions = torch.tensor(trainer.predict(rows[:4], max_new_tokens=5).predictions)
    batch = make_batch("seq2seq")
    del batch["labels"]
    expected = model.generate(**batch, max_new_tokens=5)
    assert torch.equal(predictions[:, : expected.shape[1]], expected)


def test_converted_model_takes_the_steps_of_the_original(tmp_path):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=31, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=8,
    )  # fmt: skip
    original = transformers.LlamaForCausalLM(config)
    ours = addnorm.from_hf(original)
    options = {"optim": "sgd", "learning_rate": 0.1, "gradient_checkpointing": True}
    for model in (original, ours):
        make_trainer(model, "lm", tmp_path, **options).train()
    trained, returned = original.state_dict(), ours.to_hf().state_dict()
    for name, value in trained.items():
        torch.testing.assert_close(returned[name], value, rtol=1e-4, atol=1e-5, msg=name)
