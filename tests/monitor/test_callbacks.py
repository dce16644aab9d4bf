"""Callbacks in the real Trainers of transformers and Lightning, and accelerate."""

import logging
import sys
import warnings

import pytest
import torch
from torch.utils.data import DataLoader

import addnorm
from addnorm.core.errors import MonitorWarning, UserError
from addnorm.core.rows import read_rows
from tests.monitor.models import TorchModel, build, compute_loss, make_batch, make_gpt2

SAMPLES = [make_batch(number, 1)[0] for number in range(48)]


def whole_norms(monitor):
    return {
        row["step"]: row
        for row in monitor.rows()
        if row["name"] == "gradient_norm" and row["site"] is None
    }


def assert_equal_weights(one, other):
    for first, second in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(first, second)


def train_with_transformers(folder, callbacks=(), *, resume=None, **options):
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, gradient_accumulation_steps=2,
        max_steps=6, logging_steps=2, save_steps=3, max_grad_norm=0.3, use_cpu=True,
        report_to="none", disable_tqdm=True, **options,
    )  # fmt: skip
    data = [{"input_ids": ids, "labels": ids} for ids in SAMPLES]
    trainer = Trainer(
        model=build(make_gpt2), args=arguments, train_dataset=data, callbacks=list(callbacks)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        warnings.simplefilter("ignore", FutureWarning)
        trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bfloat16"])
def test_transformers_trainer(tmp_path, bf16, caplog):
    from addnorm.monitor.hugging_face import MonitorCallback

    plain = train_with_transformers(tmp_path / "plain", bf16=bf16)
    callback = MonitorCallback(every=2)
    with caplog.at_level(logging.INFO, logger="addnorm.monitor"):
        trainer = train_with_transformers(tmp_path / "run", [callback], bf16=bf16)
    assert_equal_weights(plain.model, trainer.model)
    assert "4 residual sites found in GPT2LMHeadModel" in caplog.text
    norms = whole_norms(callback.monitor)
    logged = {e["step"]: e["grad_norm"] for e in trainer.state.log_history if "grad_norm" in e}
    assert set(norms) == {1, 2, 4, 6}
    for step, value in logged.items():  # the Trainer logs the norm before clipping
        assert norms[step]["value"] == pytest.approx(value, rel=1e-4)
        assert "clipped" not in norms[step]
    assert norms[1]["clipped"] == 1 and norms[1]["value"] == pytest.approx(0.3, rel=1e-3)
    stored = list(read_rows(tmp_path / "run" / "monitor" / "rows.jsonl"))
    assert stored == callback.monitor.rows()
    assert [r["step"] for r in stored if r["name"] == "loss"] == [2, 4, 6]


@pytest.mark.slow
def test_transformers_trainer_resumes_and_logs(tmp_path):
    from addnorm.monitor.hugging_face import MonitorCallback

    whole = train_with_transformers(tmp_path / "whole", [MonitorCallback(every=2)])
    train_with_transformers(tmp_path / "run", [MonitorCallback(every=2)])
    callback = MonitorCallback(every=2)
    resumed = train_with_transformers(
        tmp_path / "run", [callback], resume=str(tmp_path / "run" / "checkpoint-3")
    )
    assert_equal_weights(whole.model, resumed.model)
    assert set(whole_norms(callback.monitor)) == {4, 6}
    assert len(callback.monitor.state_dict()["detector"]["calm"]) == 3

    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(tmp_path / "log"), max_steps=2, report_to="none", use_cpu=True,
        disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    data = [{"input_ids": ids, "labels": ids} for ids in SAMPLES]
    trainer = Trainer(model=build(make_gpt2), args=arguments, train_dataset=data)
    trainer.add_callback(MonitorCallback(every=2, trainer=trainer))
    with pytest.warns(MonitorWarning, match="an earlier monitor measured it; that one is off now"):
        trainer.add_callback(MonitorCallback(every=2, folder=tmp_path / "second"))
        trainer.train()
    assert not any("addnorm/gradient_norm" in entry for entry in trainer.state.log_history)
    assert (tmp_path / "second" / "rows.jsonl").exists()
    trainer = Trainer(model=build(make_gpt2), args=arguments, train_dataset=data)
    trainer.add_callback(MonitorCallback(every=2, trainer=trainer))
    trainer.train()
    assert sum("addnorm/gradient_norm" in entry for entry in trainer.state.log_history) == 2


def train_with_lightning(folder, *callbacks, checkpoint=None, steps=6):
    import lightning
    from lightning.pytorch.loggers import CSVLogger

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = TorchModel()

        def training_step(self, batch, index):
            return compute_loss(self.net, batch)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.0)

    module = build(Lit)
    torch.manual_seed(5)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*")
        warnings.simplefilter("always", MonitorWarning)
        trainer = lightning.Trainer(
            max_steps=steps, accumulate_grad_batches=2, gradient_clip_val=0.3, accelerator="cpu",
            callbacks=list(callbacks), default_root_dir=str(folder),
            logger=CSVLogger(str(folder)), enable_progress_bar=False, enable_model_summary=False,
            log_every_n_steps=1,
        )  # fmt: skip
        trainer.fit(module, DataLoader(SAMPLES, batch_size=4), ckpt_path=checkpoint)
    return module, trainer


@pytest.mark.slow
def test_lightning_trainer(tmp_path):
    from addnorm.monitor.lightning import MonitorCallback

    plain, _ = train_with_lightning(tmp_path / "plain")
    callback = MonitorCallback(every=2)
    module, trainer = train_with_lightning(tmp_path / "run", callback)
    assert_equal_weights(plain, module)
    norms = whole_norms(callback.monitor)
    assert set(norms) == {1, 2, 4, 6}
    assert all(row["value"] > 0.3 for row in norms.values())  # before clipping
    assert callback.monitor.sites[0].path == "encoder.layers.0"
    assert "addnorm/max_logit_max" in (tmp_path / "run").rglob("metrics.csv").__next__().read_text()
    assert list(tmp_path.rglob("rows.jsonl"))
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    resumed = MonitorCallback(every=2)
    train_with_lightning(tmp_path / "run", resumed, checkpoint=tmp_path / "run.ckpt", steps=10)
    assert set(whole_norms(resumed.monitor)) == {8, 10}
    assert len(resumed.monitor.state_dict()["detector"]["calm"]) == 10


@pytest.mark.slow
@pytest.mark.parametrize("how", ["two", "the same twice"])
def test_lightning_callbacks_used_twice(tmp_path, how):
    from addnorm.monitor.lightning import MonitorCallback

    last = MonitorCallback(every=2, folder=tmp_path / "watch")
    first = MonitorCallback(every=2, folder=tmp_path / "other") if how == "two" else last
    text = (
        "an earlier monitor measured it" if how == "two" else "MonitorCallback once, got it twice"
    )
    plain, _ = train_with_lightning(tmp_path / "plain")
    with pytest.warns(MonitorWarning, match=text):
        module, _ = train_with_lightning(tmp_path / "run", first, last)
    assert_equal_weights(plain, module)
    assert [r["step"] for r in last.monitor.rows() if r["name"] == "loss"] == [1, 2, 3, 4, 5, 6]
    assert {r["step"] for r in last.monitor.rows() if r["name"] == "lr"} == {1, 2, 4, 6}


@pytest.mark.slow
def test_lightning_with_two_optimizers_in_one_step(tmp_path):
    import lightning

    from addnorm.monitor.lightning import MonitorCallback

    class Manual(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net, self.automatic_optimization = TorchModel(), False

        def training_step(self, batch, index):
            loss = compute_loss(self.net, batch)
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
                optimizer.zero_grad()
            return loss

        def configure_optimizers(self):
            weights = list(self.parameters())
            return [torch.optim.SGD(part, lr=0.1) for part in (weights[:9], weights[9:])]

    callback = MonitorCallback(every=1, folder=tmp_path / "watch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_steps=4, accelerator="cpu", callbacks=[callback], logger=False,
            enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
            default_root_dir=str(tmp_path),
        )  # fmt: skip
        trainer.fit(build(Manual), DataLoader(SAMPLES, batch_size=4))
    ratios = [r for r in callback.monitor.rows() if r["name"] == "update_ratio"]
    assert {r["step"] for r in ratios} == {1, 2}  # two optimizers make one update
    assert all(row["value"] > 0 for row in ratios)  # also of the optimizer that steps first


@pytest.mark.slow
def test_transformers_callback_listed_twice(tmp_path):
    from addnorm.monitor.hugging_face import MonitorCallback

    once, twice = (MonitorCallback(every=2, folder=tmp_path / name) for name in ("one", "two"))
    train_with_transformers(tmp_path / "run", [once])
    with pytest.warns(MonitorWarning, match="MonitorCallback once, got it twice") as seen:
        train_with_transformers(tmp_path / "run", [twice, twice])
    assert len([each for each in seen if each.category is MonitorWarning]) == 1
    assert once.monitor.rows() == twice.monitor.rows()


@pytest.mark.slow
def test_transformers_trainer_with_compile(tmp_path):
    from addnorm.monitor.hugging_face import MonitorCallback

    options = {"torch_compile": True, "torch_compile_backend": "aot_eager"}
    plain = train_with_transformers(tmp_path / "plain", [], **options)
    callback = MonitorCallback(every=2)
    trainer = train_with_transformers(tmp_path / "run", [callback], **options)
    assert_equal_weights(plain.model, trainer.model)
    assert len(callback.monitor.sites) == 4 and callback.monitor.notes == ()


@pytest.mark.slow
def test_accelerate_with_accumulation():
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    models = []
    for is_monitored in (False, True):
        AcceleratorState._reset_state(reset_partial_state=True)  # of the Trainers of other tests
        accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True, mixed_precision="bf16")
        model = build(make_gpt2)
        torch.manual_seed(5)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
        run, optimizer, loader = accelerator.prepare(
            model, optimizer, DataLoader(SAMPLES, batch_size=4)
        )
        monitor = addnorm.Monitor(run, optimizer, every=2) if is_monitored else None
        for batch in loader:
            with accelerator.accumulate(run):
                loss = compute_loss(run, batch)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(run.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            if monitor is not None:
                monitor.step(loss)
        models.append(model)
    assert_equal_weights(*models)
    assert set(whole_norms(monitor)) == {1, 2, 4, 6}
    assert [r["step"] for r in monitor.rows() if r["name"] == "loss"] == [1, 2, 3, 4, 5, 6]
    assert len(monitor.sites) == 4 and monitor.notes == ()
    monitor.close()


def test_invalid_interval():
    from addnorm.monitor.hugging_face import MonitorCallback

    with pytest.raises(UserError, match=r"^every: expected"):
        MonitorCallback(every=0)


@pytest.mark.parametrize(
    ("module", "package"), [("hugging_face", "transformers"), ("lightning", "lightning")]
)
def test_missing_library_is_one_line(module, package, monkeypatch):
    import importlib

    name = f"addnorm.monitor.{module}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    for each in (package, f"{package}.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, each, None)
    with pytest.raises(ImportError, match=f"^{name} requires {package}.*pip install") as caught:
        importlib.import_module(name)
    assert "\n" not in str(caught.value)
    monkeypatch.delitem(sys.modules, name, raising=False)
