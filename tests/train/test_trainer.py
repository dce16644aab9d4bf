"""Training loop: learning, resuming with the same bits, spikes, messages."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file

from addnorm import build
from addnorm.core.errors import UserError
from addnorm.core.rows import read_rows
from addnorm.core.seeds import derive_seed
from addnorm.data import Corpus, write_corpus
from addnorm.data.tokenizer import Tokenizer
from addnorm.models import base
from addnorm.report.run_history import History
from addnorm.report.run_page import write_training_report
from addnorm.tasks import Objective, get_task
from addnorm.train import checkpoint as checkpoints
from addnorm.train import make_optimizer, make_schedule
from addnorm.train.trained_run import TrainedRun
from addnorm.train.trainer import train
from tests.train.cases import RecordingCallback, digest, make_recipe, write_number_corpus


class Stop(Exception):
    pass


class InterruptAt(RecordingCallback):
    """Callback that raises an exception after a step, as if the process had been killed."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_step_end(self, state, loss):
        super().on_step_end(state, loss)
        if state.step == self.step:
            raise Stop


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return {
        task: write_number_corpus(tmp_path_factory.mktemp(task), task).folder
        for task in ("translate", "lm", "classify")
    }


@pytest.mark.parametrize("task", ["translate", "lm", "classify"])
def test_training_reduces_loss(data, tmp_path, task):
    callback = RecordingCallback()
    recipe = make_recipe(data[task], task, steps=60, valid_every=20, save_every=20)
    outcome = train(recipe, tmp_path / "run", callback=callback)
    assert outcome.ending == "done"
    assert outcome.state.step == 60
    losses = [loss for _, loss in callback.steps]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    run = TrainedRun.open(tmp_path / "run", task=task)
    assert run.step == outcome.state.best_step
    assert not run.model.training
    assert run.labels == (("even", "odd") if task == "classify" else ())


def test_same_recipe_gives_same_bits(data, tmp_path):
    recipe = make_recipe(data["translate"], dropout=0.1)
    for name in ("a", "b"):
        train(recipe, tmp_path / name)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    train(make_recipe(data["translate"], dropout=0.1, seed=1), tmp_path / "c")
    assert digest(tmp_path / "a") != digest(tmp_path / "c")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ema": 0.9, "accumulate": 2},
        {"wiring": "admin", "optimizer": "radam"},
        {"wiring": "ngpt", "optimizer": "adam"},
        {"optimizer": "adafactor", "norm": "rms"},
        {"optimizer": "muon", "wiring": "dlcl"},
        {"optimizer": "muon", "qk_clip": 0.5, "z_loss": 1e-3},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())) or "plain",
)
def test_resume_reproduces_uninterrupted_run(data, tmp_path, changes):
    recipe = make_recipe(data["translate"], dropout=0.1, **changes)
    train(recipe, tmp_path / "whole")
    for step in (2, 4, 7, 11):
        with pytest.raises(Stop):
            train(recipe, tmp_path / "broken", callback=InterruptAt(step))
    train(recipe, tmp_path / "broken")
    assert digest(tmp_path / "whole") == digest(tmp_path / "broken")
    whole, broken = (
        list(read_rows(tmp_path / name / "rows.jsonl")) for name in ("whole", "broken")
    )
    assert [without_speed(row) for row in whole] == [without_speed(row) for row in broken]


def without_speed(row):
    return {**row, "value": 0} if row["name"] == "tokens_per_second" else row


def test_finished_run_is_not_trained_again(data, tmp_path):
    recipe = make_recipe(data["lm"], "lm")
    train(recipe, tmp_path / "run")
    before, callback = digest(tmp_path / "run"), RecordingCallback()
    assert train(recipe, tmp_path / "run", callback=callback).ending == "done"
    assert digest(tmp_path / "run") == before
    assert callback.steps == []


@pytest.mark.parametrize("damage", ["cut", "flip", "state"])
def test_damaged_checkpoint_is_ignored(data, tmp_path, damage):
    recipe, callback = make_recipe(data["lm"], "lm"), RecordingCallback()
    train(recipe, tmp_path / "whole")
    with pytest.raises(Stop):
        train(recipe, tmp_path / "run", callback=InterruptAt(9))
    newest = tmp_path / "run" / "checkpoints" / "step-8"
    path = newest / ("state.json" if damage == "state" else "model.safetensors")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content[: len(content) - 9] if damage == "cut" else content)
    train(recipe, tmp_path / "run", callback=callback)
    assert "ignoring the damaged checkpoint of step 8" in callback.messages
    assert callback.steps[0][0] == 5
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_full_disk_is_reported_and_keeps_last_checkpoint(data, tmp_path, monkeypatch):
    recipe, real = make_recipe(data["lm"], "lm"), base.save_file

    def save_until_full(tensors, path):
        if "step-8" in str(path):
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        real(tensors, path)

    monkeypatch.setattr(base, "save_file", save_until_full)
    with pytest.raises(UserError) as error:
        train(recipe, tmp_path / "run")
    assert "No space left on device (os error 28)); the checkpoint of step 4 is intact" in str(
        error.value
    )
    monkeypatch.undo()
    assert train(recipe, tmp_path / "run").ending == "done"
    train(recipe, tmp_path / "whole")
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_patience_stops_training(data, tmp_path):
    recipe = make_recipe(data["lm"], "lm", lr=1e-9, patience=2, ema=0.99, steps=400, valid_every=1)
    outcome = train(recipe, tmp_path / "run")
    assert outcome.ending == "stopped"
    assert outcome.state.step < 400
    assert f"no validation loss below that of step {outcome.state.best_step}" in outcome.reason


def test_best_checkpoint_is_kept(data, tmp_path):
    recipe = make_recipe(data["lm"], "lm", steps=40, lr=0.3, valid_every=2, save_every=20)
    best = train(recipe, tmp_path / "run").state.best_step
    assert best in checkpoints.list_steps(tmp_path / "run" / "checkpoints")
    assert TrainedRun.open(tmp_path / "run").step == best
    rows = [r for r in read_rows(tmp_path / "run" / "rows.jsonl") if r.get("split") == "valid"]
    losses = {row["step"]: row["value"] for row in rows if row["name"] == "loss"}
    assert min(losses, key=losses.get) == best


def test_accumulated_batches_equal_one_larger_batch(data, tmp_path):
    """The first update uses the mean over all tokens of the three batches."""
    recipe, callback = (
        make_recipe(data["lm"], "lm", accumulate=3, steps=1, dropout=0.0, clip=None),
        RecordingCallback(),
    )
    train(recipe, tmp_path / "run", callback=callback)
    run = TrainedRun.open(tmp_path / "run")
    model = build(run.model.config, seed=derive_seed(recipe.seed, "init"))
    corpus = Corpus.open(data["lm"])
    seed = derive_seed(recipe.seed, "data")
    stream = (
        get_task("lm")
        .make_batches(corpus, run.tokenizer, batch_tokens=96, max_length=16, seed=seed)
        .stream()
    )
    batches = [next(stream)[0] for _ in range(3)]
    logits = [model(batch.inputs).flatten(0, 1) for batch in batches]
    targets = torch.cat([batch.targets.flatten() for batch in batches])
    loss = F.cross_entropy(torch.cat(logits), targets)
    assert callback.steps[0][1] == pytest.approx(loss.item(), rel=1e-6)
    loss.backward()
    optimizer = make_optimizer(
        recipe.optimizer, model, lr=recipe.lr, weight_decay=recipe.weight_decay
    )
    optimizer.set_lr(make_schedule(recipe.schedule).factor(1, 1))
    optimizer.step()
    for name, weight in run.model.named_parameters():
        if not name.endswith("k_proj.bias"):  # its gradient is rounding error, which Adam scales up
            torch.testing.assert_close(weight, model.get_parameter(name), rtol=1e-4, atol=1e-5)


def test_recompute_does_not_change_bits(data, tmp_path):
    for name, recompute in (("kept", False), ("recomputed", True)):
        recipe = make_recipe(data["translate"], recompute=recompute, dropout=0.2, depth=2)
        train(recipe, tmp_path / name)
    assert digest(tmp_path / "kept") == digest(tmp_path / "recomputed")


def test_monitor_does_not_change_bits(data, tmp_path):
    for name, every in (("monitored", 1), ("plain", 0)):
        train(make_recipe(data["translate"], monitor_every=every, dropout=0.2), tmp_path / name)
    assert digest(tmp_path / "monitored") == digest(tmp_path / "plain")
    rows = list(read_rows(tmp_path / "monitored" / "rows.jsonl"))
    names = {row["name"] for row in rows if "site" in row}
    assert names >= {"gradient_norm", "stream_variance", "dependency", "update_ratio"}
    assert names >= {"attention_entropy", "max_logit"}


def test_rows_contain_loss_learning_rate_and_speed(data, tmp_path):
    recipe = make_recipe(data["lm"], "lm", schedule="linear(warmup=4)")
    train(recipe, tmp_path / "run")
    rows = list(read_rows(tmp_path / "run" / "rows.jsonl"))
    for name in ("loss", "gradient_norm", "lr", "tokens_per_second"):
        steps = [r["step"] for r in rows if r["name"] == name and r.get("split") != "valid"]
        assert set(steps) >= set(range(1, 13)), name
    rates = {row["step"]: row["value"] for row in rows if row["name"] == "lr"}
    assert rates[1] == pytest.approx(0.01 / 4)
    assert rates[4] == pytest.approx(0.01)
    assert rates[12] == 0
    valid = {row["step"]: row for row in rows if row["name"] == "perplexity"}
    loss = {
        r["step"]: r["value"] for r in rows if r["name"] == "loss" and r.get("split") == "valid"
    }
    assert {step: math.exp(value) for step, value in loss.items()} == {
        step: pytest.approx(row["value"]) for step, row in valid.items()
    }


class CorruptWeightAt(RecordingCallback):
    """Callback that overwrites one weight after a step."""

    def __init__(self, step, value):
        super().__init__()
        self.at, self.value = step, value

    def on_train_start(self, state, summary):
        self.model = summary["model"]

    def on_step_end(self, state, loss):
        super().on_step_end(state, loss)
        if state.step == self.at:
            self.at = -1
            with torch.no_grad():
                self.find_weight(self.model)[0, 0] = self.value

    def find_weight(self, model):
        return model.decoder.sublayers[1].out_proj.weight


def test_nan_is_located_and_ends_the_run(data, tmp_path):
    callback = CorruptWeightAt(6, math.nan)
    outcome = train(make_recipe(data["translate"]), tmp_path / "run", callback=callback)
    assert outcome.ending == "diverged"
    assert "the first NaN arose in decoder layer 0, cross-attention (branch)" in outcome.reason
    assert outcome.state.step == 6
    assert checkpoints.list_steps(tmp_path / "run" / "checkpoints")[0] == 4
    rows = [r for r in read_rows(tmp_path / "run" / "rows.jsonl") if r["name"] == "diverged"]
    assert [(row["stack"], row["site"], row["step"]) for row in rows] == [("decoder", 1, 7)]
    page = write_training_report(tmp_path / "run").read_text()
    assert "Diverged at step 7 (decoder site 1 cross)." in page


def test_rewind_restores_checkpoint_and_skips_batch(data, tmp_path):
    callback = CorruptWeightAt(6, math.nan)
    recipe = make_recipe(data["translate"], on_spike="rewind")
    outcome = train(recipe, tmp_path / "run", callback=callback)
    assert outcome.ending == "done"
    assert outcome.state.rewinds == 1
    assert [step for step, _ in callback.steps] == [1, 2, 3, 4, 5, 6, 5, 6, 7, 8, 9, 10, 11, 12]
    assert "rewound to step 4; the data continue" in callback.messages
    valid = [r["step"] for r in callback.rows if r["name"] == "loss" and r.get("split") == "valid"]
    assert valid == [4, 8, 12]  # step 4 is not validated again
    events = History.from_rows(read_rows(tmp_path / "run" / "rows.jsonl")).events()
    assert [(each.step, each.label) for each in events] == [(7, "spike, rewound")]


def test_spike_policies_are_equal_without_spikes(data, tmp_path):
    for policy in ("log", "rewind", "skip"):
        train(make_recipe(data["translate"], on_spike=policy, dropout=0.1), tmp_path / policy)
    assert digest(tmp_path / "log") == digest(tmp_path / "rewind") == digest(tmp_path / "skip")


def test_resume_reproduces_run_with_rewind(data, tmp_path, monkeypatch):
    real = Objective.forward

    def forward_with_nan(self, inputs, targets):
        loss, sums = real(self, inputs, targets)
        bad = self.training and int(inputs.sum()) == bad_sum
        return loss * math.nan if bad else loss, sums

    recipe = make_recipe(data["translate"], on_spike="rewind", dropout=0.1)
    stream = (
        get_task("translate")
        .make_batches(
            Corpus.open(data["translate"]),
            Tokenizer.train(Corpus.open(data["translate"]), "char"),
            batch_tokens=96,
            max_length=16,
            seed=derive_seed(recipe.seed, "data"),
        )
        .stream()
    )
    batches = [next(stream)[0] for _ in range(7)]
    bad_sum = int(batches[6].inputs.sum())
    assert bad_sum not in [int(batch.inputs.sum()) for batch in batches[:6]]
    monkeypatch.setattr(Objective, "forward", forward_with_nan)
    train(recipe, tmp_path / "whole")
    for step in (6, 5, 9):
        with pytest.raises(Stop):
            train(recipe, tmp_path / "broken", callback=InterruptAt(step))
    outcome = train(recipe, tmp_path / "broken")
    assert outcome.state.rewinds >= 1
    assert digest(tmp_path / "whole") == digest(tmp_path / "broken")


def test_best_checkpoint_survives_rewind(data, tmp_path):
    recipe = make_recipe(data["lm"], "lm", on_spike="rewind", steps=24, save_every=6, valid_every=2)
    callback = CorruptWeightAt(15, math.nan)
    callback.find_weight = lambda model: model.decoder.sublayers[0].out_proj.weight
    best = train(recipe, tmp_path / "run", callback=callback).state.best_step
    assert TrainedRun.open(tmp_path / "run").step == best


def test_empty_validation_is_rejected(tmp_path):
    pairs = [{"source": str(n), "target": str(n)} for n in range(50)]
    long = [{"source": "1" * 40, "target": "1"}]
    write_corpus(tmp_path / "c", "translate", splits={"train": pairs, "valid": long})
    with pytest.raises(UserError, match=r"can be used: 1 longer than 16 tokens left out; expected"):
        train(make_recipe(tmp_path / "c"), tmp_path / "run")


def test_changed_corpus_is_rejected(tmp_path):
    write_number_corpus(tmp_path / "c", "classify")
    recipe = make_recipe(tmp_path / "c", "classify")
    with pytest.raises(Stop):
        train(recipe, tmp_path / "run", callback=InterruptAt(9))
    write_number_corpus(tmp_path / "c", "classify", count=70)
    with pytest.raises(UserError, match=r"has changed since this run started; restore it"):
        train(recipe, tmp_path / "run")


def test_patience_without_validation_is_rejected(data, tmp_path):
    with pytest.raises(UserError, match="valid_every: expected 1 or more with patience=2, got 0"):
        make_recipe(data["lm"], "lm", patience=2, valid_every=0)
    write_corpus(tmp_path / "c", "lm", splits={"train": [{"text": "abc" * 9}] * 9})
    with pytest.raises(UserError, match=r"patience=2 requires a validation split, and .* has none"):
        train(make_recipe(tmp_path / "c", "lm", patience=2), tmp_path / "run")


def test_too_many_skipped_updates_end_as_diverged(data, tmp_path):
    recipe = make_recipe(data["translate"], on_spike="skip", lr=1e30, clip=None, schedule="none")
    outcome = train(recipe, tmp_path / "run")
    assert outcome.ending == "diverged"


def test_validation_does_not_change_bits(data, tmp_path):
    """Dropout is active again after a validation, with the random numbers of the step."""
    for name, every in (("often", 2), ("never", 0)):
        train(make_recipe(data["lm"], "lm", dropout=0.2, valid_every=every), tmp_path / name)
    assert digest(tmp_path / "often") == digest(tmp_path / "never")


@pytest.mark.parametrize(("steps", "log_every"), [(10, 4), (12, 100)])
def test_report_marks_only_unfinished_runs(data, tmp_path, steps, log_every):
    recipe = make_recipe(data["lm"], "lm", steps=steps, log_every=log_every, valid_every=0)
    train(recipe, tmp_path / "run")
    assert "not finished" not in write_training_report(tmp_path / "run").read_text()
    with pytest.raises(Stop):
        train(recipe, tmp_path / "cut", callback=InterruptAt(7))
    assert "not finished" in write_training_report(tmp_path / "cut").read_text()


def test_persistent_nan_ends_as_diverged_under_skip(data, tmp_path):
    callback = CorruptWeightAt(6, math.nan)
    recipe = make_recipe(data["translate"], on_spike="skip", steps=60)
    outcome = train(recipe, tmp_path / "run", callback=callback)
    assert outcome.ending == "diverged"
    assert outcome.state.step < 60


def test_loss_spike_is_skipped(data, tmp_path):
    class ScaleEmbeddingAt40(CorruptWeightAt):
        """Scales the embeddings before step 41, and restores them after the skipped update."""

        def on_step_end(self, state, loss):
            RecordingCallback.on_step_end(self, state, loss)
            if state.step == 40:
                self.before = self.model.embed.table.detach().clone()
                with torch.no_grad():
                    self.model.embed.table.mul_(30)

        def on_message(self, text):
            if text.startswith("training a tokenizer"):
                return
            super().on_message(text)
            assert self.model.embed.table.equal(self.before * 30)
            with torch.no_grad():
                self.model.embed.table.copy_(self.before)

    recipe = make_recipe(data["translate"], on_spike="skip", steps=48, valid_every=0, dropout=0.0)
    callback = ScaleEmbeddingAt40(0, 0)
    assert train(recipe, tmp_path / "run", callback=callback).ending == "done"
    rows = [r for r in read_rows(tmp_path / "run" / "rows.jsonl") if r["name"] == "skip"]
    assert [row["step"] for row in rows] == [41]
    assert 41 not in [step for step, _ in callback.steps]
    assert callback.messages == [f"loss {rows[0]['value']:.4g} at step 41"]


def test_skipped_records_are_reported(data, tmp_path):
    callback = RecordingCallback()
    train(make_recipe(data["translate"], max_length=6), tmp_path / "run", callback=callback)
    assert any("longer than 6 tokens left out" in text for text in callback.messages)


def test_run_folder_can_be_moved(data, tmp_path):
    train(make_recipe(data["classify"], "classify", wiring="b2t"), tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names >= {
        "config.yaml", "arrangement.json", "tokenizer.json", "rows.jsonl", "checkpoints",
    }  # fmt: skip
    facts = json.loads((tmp_path / "run" / "arrangement.json").read_text())
    assert facts["stacks"][0]["wiring"] == "b2t"
    assert facts["versions"]["torch"] == torch.__version__
    moved = (tmp_path / "run").rename(tmp_path / "elsewhere")
    assert TrainedRun.open(moved).model.config.wiring == "b2t"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lr": 0.02}, "contains another run, with lr=0.01 (now 0.02); choose another -o"),
        ({"wiring": "b2t"}, "contains another run, with wiring=pre_ln (now b2t)"),
        ({"window": 3}, "contains another run, with window=None (now 3)"),
    ],
)
def test_run_of_another_recipe_is_not_overwritten(data, tmp_path, changes, message):
    train(make_recipe(data["lm"], "lm"), tmp_path / "run")
    before = digest(tmp_path / "run")
    with pytest.raises(UserError) as error:
        train(make_recipe(data["lm"], "lm", **changes), tmp_path / "run")
    assert message in str(error.value)
    assert digest(tmp_path / "run") == before


def test_failed_start_can_be_corrected(data, tmp_path):
    with pytest.raises(UserError, match="vocab: expected at least 260"):
        train(make_recipe(data["lm"], "lm", tokenizer="bpe", vocab=3), tmp_path / "run")
    assert train(make_recipe(data["lm"], "lm", vocab=300), tmp_path / "run").ending == "done"


def test_damaged_best_checkpoint_is_skipped_and_reported(data, tmp_path):
    train(make_recipe(data["lm"], "lm"), tmp_path / "run")
    first = TrainedRun.open(tmp_path / "run")
    assert first.is_best
    (tmp_path / "run" / "checkpoints" / f"step-{first.step}" / "model.safetensors").write_bytes(b"")
    second = TrainedRun.open(tmp_path / "run")
    assert not second.is_best
    assert second.step != first.step


def test_arrangement_without_model_is_rejected(data, tmp_path):
    train(make_recipe(data["lm"], "lm"), tmp_path / "run")
    (tmp_path / "run" / "arrangement.json").write_text("{}")
    with pytest.raises(UserError, match="describes no model; rerun the `addnorm train` command"):
        TrainedRun.open(tmp_path / "run")


def test_nonfinite_last_loss_ends_as_diverged(data, tmp_path):
    recipe = make_recipe(data["lm"], "lm", steps=1, lr=1e30, clip=None, schedule="none")
    outcome = train(recipe, tmp_path / "run")
    assert (outcome.ending, outcome.reason) == ("diverged", "the last loss was nan")


def test_folder_with_foreign_files_is_rejected(data, tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(
        UserError,
        match=r"expected a new or empty folder for -o, got .* contains thesis.tex, ... and no run",
    ):
        train(make_recipe(data["lm"], "lm"), tmp_path)


def test_changed_tokenizer_is_rejected(data, tmp_path):
    recipe = make_recipe(data["lm"], "lm")
    for name, folder in (("a", data["lm"]), ("b", data["classify"])):
        task = "lm" if name == "a" else "classify"
        train(
            make_recipe(folder, task, tokenizer="char" if name == "a" else "bpe"), tmp_path / name
        )
    (tmp_path / "a" / "tokenizer.json").write_bytes(
        (tmp_path / "b" / "tokenizer.json").read_bytes()
    )
    with pytest.raises(UserError, match=r"is the tokenizer of another run; restore the tokenizer"):
        TrainedRun.open(tmp_path / "a")
    with pytest.raises(UserError, match=r"tokenizer of another run"):
        train(recipe, tmp_path / "a")


def test_invalid_recipe_is_rejected_before_corpus_is_read(tmp_path):
    with pytest.raises(UserError, match=r"heads: expected a divisor of dim=16, got 3"):
        train(make_recipe(tmp_path / "nowhere", heads=3), tmp_path / "run")
    with pytest.raises(UserError, match=r"no corpus at .*nowhere"):
        train(make_recipe(tmp_path / "nowhere"), tmp_path / "run")
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").glob("[!.]*"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("none", ": it has no config.yaml; expected the -o folder"),
        ("not started", "has no valid checkpoint (training has not started)"),
        ("damaged", "has no valid checkpoint (all are damaged)"),
        ("task", "expected a run of task 'translate', got one of 'lm'"),
    ],
)
def test_invalid_run_folder_cannot_be_opened(data, tmp_path, damage, message):
    if damage != "none":
        train(make_recipe(data["lm"], "lm"), tmp_path)
    for path in (tmp_path / "checkpoints").glob("step-*/model.safetensors"):
        if damage == "damaged":
            path.write_bytes(b"")
        if damage == "not started":
            (path.parent).rename(tmp_path / path.parent.name)
    with pytest.raises(UserError) as error:
        TrainedRun.open(tmp_path, task="translate" if damage == "task" else None)
    assert message in str(error.value)


def test_z_loss_adds_the_square_of_the_log_of_the_normalizer(data, tmp_path):
    torch.manual_seed(0)
    model = build(kind="lm", vocab=20, dim=8, depth=1, heads=2)
    task, ids = get_task("lm"), torch.randint(4, 20, (3, 6))
    ids[0, 4:] = 0
    plain, sums = Objective(model, task)(ids, ids)
    loss, same = Objective(model, task, z_loss=0.3)(ids, ids)
    arguments, masks = task.model_inputs(ids, ids)
    targets = task.select_targets(ids)
    normalizers = model(*arguments, **masks).exp().sum(-1).log()[targets != -100]
    torch.testing.assert_close(loss, plain + 0.3 * normalizers.square().sum())
    torch.testing.assert_close(same, sums)


def test_qk_clip_bounds_the_logits_of_the_next_batch(data, tmp_path):
    recipe = make_recipe(data["lm"], "lm", qk_clip=0.05, steps=8, lr=0.05)
    train(recipe, tmp_path / "run")
    free = make_recipe(data["lm"], "lm", steps=8, lr=0.05)
    train(free, tmp_path / "free")
    sizes = [
        sum(
            float(attention.q_proj.weight.detach().norm())
            for attention in TrainedRun.open(tmp_path / name).model.decoder.sublayers[::2]
        )
        for name in ("run", "free")
    ]
    assert sizes[0] < 0.7 * sizes[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"qk_clip": 1.0, "qk_norm": "rms_head"},
            "qk_clip: expected attention without a query-key",
        ),
        ({"qk_clip": 1.0, "wiring": "ngpt"}, "qk_clip: expected a wiring without norms of queries"),
        ({"qk_clip": 1.0, "compile": True}, "qk_clip: expected compile=False"),
        ({"qk_clip": 0.0}, "qk_clip"),
        ({"z_loss": -1.0}, "z_loss"),
    ],
)
def test_rules_for_logits_are_checked(data, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        train(make_recipe(data["lm"], "lm", **changes), tmp_path / "run")


def test_weights_without_master_copy_are_bfloat16(data, tmp_path):
    recipe = make_recipe(data["lm"], "lm", dtype="bfloat16", master_weights=False, steps=40)
    callback = RecordingCallback()
    train(recipe, tmp_path / "run", callback=callback, until=20)
    train(recipe, tmp_path / "run", callback=callback)
    train(recipe, tmp_path / "whole")
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")
    losses = [loss for _, loss in callback.steps]
    assert losses[-1] < losses[0]
    weights = load_file(tmp_path / "run" / "checkpoints" / "step-40" / "model.safetensors")
    assert {each.dtype for name, each in weights.items() if "_extra_state" not in name} == {
        torch.bfloat16
    }
    moments = load_file(tmp_path / "run" / "checkpoints" / "step-40" / "optimizer.safetensors")
    assert {each.dtype for name, each in moments.items() if name.endswith("exp_avg")} == {
        torch.bfloat16
    }


def test_master_weights_stay_float32(data, tmp_path):
    train(make_recipe(data["lm"], "lm", dtype="bfloat16", steps=4), tmp_path / "run")
    weights = load_file(tmp_path / "run" / "checkpoints" / "step-4" / "model.safetensors")
    assert torch.bfloat16 not in {each.dtype for each in weights.values()}
    with pytest.raises(UserError, match="master_weights: expected True with dtype=float32"):
        make_recipe(data["lm"], "lm", master_weights=False)
