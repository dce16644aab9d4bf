"""Removal of norms: equal at the start, one after the other from the last, in three trainers."""

import pytest
import torch
from torch import nn

import addnorm
from addnorm.norms.constant_std import ConstantStd
from addnorm.rewiring.removal import NormRemoval
from addnorm.rewiring.removal.trainer import NormRemovalCallback
from tests.rewiring.models import Model, build, far_from_neutral, ids


def removable(model=None):
    model = far_from_neutral(Model()) if model is None else model
    return addnorm.rewire(model, norm="constant_std", calibrate=ids(4, 12))


def test_equal_at_start_and_linear_at_the_end():
    model = far_from_neutral(Model())
    result, report = removable(model)
    assert report.grade == "equal_at_start"
    assert report.max_error < 1e-10
    norm = result.last
    x = torch.randn(5, 24)
    with torch.no_grad():
        expected = nn.functional.layer_norm(x, (24,), norm.weight, norm.bias, norm.eps)
        assert torch.allclose(norm(x), expected, atol=1e-5)
        assert float(norm.deviation) > 0
        norm.remove()
        doubled = (norm(2 * x) - norm.bias) / 2
        assert torch.allclose(doubled, norm(x) - norm.bias, atol=1e-5)
        assert torch.allclose(
            norm(x), norm.weight * (x - x.mean(-1, keepdim=True)) / norm.deviation + norm.bias
        )


def test_own_models_keep_their_config(tmp_path):
    result, report = removable(build())
    assert report.grade == "equal_at_start"
    assert result.config.norm.startswith("constant_std")
    NormRemoval(result, start=1, every=1, keep=1).update(3)
    result.save(tmp_path)
    loaded = addnorm.load(tmp_path)
    flags = [bool(m.removed) for m in loaded.modules() if isinstance(m, ConstantStd)]
    assert flags == [False, False, True, True, True]  # from the last


def test_schedule():
    result, _ = removable()
    removal = NormRemoval(result, start=2, every=3)
    counts = []
    for step in range(1, 10):
        removal.update(step)
        counts.append(removal.num_removed)
    assert counts == [0, 1, 1, 1, 2, 2, 2, 3, 3]
    assert removal.last_step == 8
    assert removal.norms[0] is result.last


def test_running_mean_stops_with_the_removal():
    norm = ConstantStd(8).train()
    x = torch.randn(4, 8)
    norm(x)
    first = float(norm.deviation)
    assert first == pytest.approx(float((x.var(-1, correction=0) + 1e-5).sqrt().mean()), rel=1e-5)
    norm(3 * x)
    assert float(norm.deviation) == pytest.approx(0.9 * first + 0.1 * 3 * first, rel=1e-3)
    norm.remove()
    before = float(norm.deviation)
    norm(9 * x)
    assert float(norm.deviation) == before


def test_refusals():
    with pytest.raises(addnorm.UserError, match="model: expected norms of constant_std, got none"):
        NormRemoval(Model(), start=1, every=1)
    with pytest.raises(addnorm.UserError, match="every: expected a whole number from 1, got 0"):
        NormRemoval(removable()[0], start=1, every=0)


@pytest.mark.slow
def test_trainer_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from addnorm.rewiring.removal.hugging_face import NormRemovalCallback as Callback

    result, _ = removable(build())
    data = [{"input_ids": each, "labels": each} for each in ids(8, 6)]
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=4, per_device_train_batch_size=2, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    callback = Callback(start=2, every=1)
    transformers.Trainer(model=result, args=args, train_dataset=data, callbacks=[callback]).train()
    assert callback.removal.num_removed == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_trainer_of_lightning(tmp_path):
    lightning = pytest.importorskip("lightning")
    from addnorm.rewiring.removal.lightning import NormRemovalCallback as Callback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.inner = removable()[0]

        def training_step(self, batch, index):
            return self.inner(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    callback = Callback(start=2, every=1)
    trainer = lightning.Trainer(
        max_steps=3, callbacks=[callback], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        accelerator="cpu",
    )  # fmt: skip
    trainer.fit(Module(), torch.utils.data.DataLoader(ids(6, 5), batch_size=2))
    assert callback.removal.num_removed == 2


def test_callback_of_the_own_trainer():
    result, _ = removable(build())
    callback = NormRemovalCallback(start=1, every=1)

    class State:
        step = 0

    callback.on_train_start(State, {"model": result})
    State.step = 2
    callback.on_step_end(State, 1.0)
    assert callback.removal.num_removed == 2
