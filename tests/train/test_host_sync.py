"""Steps on a device: the host never waits for a value, and reads losses late with the same result.

The meta device stands for a GPU: its tensors have no values, so that an operation that hands one
to the host, or whose output has a size that depends on values, cannot succeed.
"""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from addnorm.core.rows import read_rows
from addnorm.kernels.attention import varlen
from addnorm.norms.base import registry as norms
from addnorm.train import gradients
from addnorm.train import trainer as trainer_module
from addnorm.train.callbacks import TrainCallback
from addnorm.train.distributed import World
from addnorm.train.optimizers.base import registry as optimizers
from addnorm.train.session import build_session
from addnorm.train.trainer import Trainer, train
from addnorm.wirings import registry as wirings
from tests.train.cases import RecordingCallback, digest, make_recipe, write_number_corpus

ATEN = torch.ops.aten
SYNCHRONIZING = {
    *(ATEN._local_scalar_dense.default, ATEN.item.default, ATEN.is_nonzero.default),
    *(ATEN.nonzero.default, ATEN.masked_select.default, ATEN.equal.default),
    *(ATEN._unique2.default, ATEN.unique_consecutive.default, ATEN.bincount.default),
    *(ATEN.repeat_interleave.Tensor,),
}
"""Operations that hand a value to the host, or whose output has a size that depends on values."""
READING_OPTIMIZERS = {"adafactor"}
"""Optimizers whose step reads values: torch's Adafactor reads the norm of every weight."""


class HostSyncError(Exception):
    """An operation that makes the host wait for the device."""


class RefuseHostSync(TorchDispatchMode):
    """Raise at operations that make the host wait for the meta device, standing for a GPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [each for each in torch.utils._pytree.tree_leaves((args, kwargs))]
        if any(isinstance(each, torch.Tensor) and each.is_meta for each in tensors):
            target = kwargs.get("device")
            is_copy = func is ATEN._to_copy.default and target is not None
            is_masked = func in (ATEN.index.Tensor, ATEN.index_put.default) and any(
                each is not None and each.dtype == torch.bool for each in args[1]
            )
            if (
                func in SYNCHRONIZING
                or is_masked
                or (is_copy and torch.device(target).type == "cpu")
            ):
                raise HostSyncError(str(func))
        return func(*args, **kwargs)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folders = {
        task: write_number_corpus(tmp_path_factory.mktemp(task), task).folder
        for task in ("translate", "lm", "classify")
    }
    return folders | {"mlm": folders["lm"]}


def make_meta_trainer(recipe, folder, monkeypatch):
    folder.mkdir()
    world = World(device=torch.device("meta"))
    trainer = Trainer(build_session(recipe, folder, world), TrainCallback())
    monkeypatch.setattr(Trainer, "defers_reading", True)
    monkeypatch.setattr(gradients, "_seed_generators", lambda session, step: None)
    trainer._set_state(trainer.checkpointer.resume())
    trainer.throughput = trainer_module.Throughput(trainer.state)
    trainer.session.objective.train()
    return trainer


def run_steps(trainer, count):
    stream = trainer.session.batches.stream()
    with RefuseHostSync():
        for _ in range(count):
            assert trainer._step(stream) == ""
    assert len(trainer.pending) == count


COMMON = {"log_every": 100, "monitor_every": 0, "valid_every": 0, "save_every": 100, "steps": 50}
VARLEN = {"pre_ln", "post_ln", "hyper", "ngpt", "dlcl", "layer_drop"}
CASES = [pytest.param(name, False, id=f"{name}-padded") for name in wirings] + [
    pytest.param(name, True, id=f"{name}-varlen", marks=[] if name in VARLEN else pytest.mark.slow)
    for name in wirings
]


@pytest.mark.parametrize(("wiring", "flash"), CASES)
def test_step_of_wiring_has_no_host_sync(data, tmp_path, monkeypatch, wiring, flash):
    monkeypatch.setattr(varlen, "_can_use_flash", lambda q, k, dtype: flash)
    check_steps(data, tmp_path, monkeypatch, wiring=wiring, order="random")


@pytest.mark.parametrize("norm", list(norms))
def test_step_of_norm_has_no_host_sync(data, tmp_path, monkeypatch, norm):
    # of an encoder, because some norms use statistics over tokens
    check_steps(data, tmp_path, monkeypatch, task="classify", norm=norm)


@pytest.mark.parametrize("optimizer", list(optimizers))
def test_step_of_optimizer_has_no_host_sync(data, tmp_path, monkeypatch, optimizer):
    if optimizer in READING_OPTIMIZERS:
        with pytest.raises(HostSyncError):
            check_steps(data, tmp_path, monkeypatch, optimizer=optimizer)
    else:
        check_steps(data, tmp_path, monkeypatch, optimizer=optimizer)


@pytest.mark.parametrize(
    "changes",
    [
        {"task": "lm"},
        {"task": "classify"},
        {"task": "mlm"},
        {"task": "lm", "positions": "learned", "recompute": True},
        {"ema": 0.9, "accumulate": 2, "label_smoothing": 0.0},
        {"z_loss": 1e-4},
        {"norm": "rms", "activation": "swiglu", "qk_norm": "rms"},
        {"positions": "rotary", "kv_heads": 1},
        {"order": "length", "clip": None, "tied": False},
        {"scale": "completep(base_dim=8, base_depth=1)"},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_step_has_no_host_sync(data, tmp_path, monkeypatch, changes):
    check_steps(data, tmp_path, monkeypatch, **changes)


def check_steps(data, tmp_path, monkeypatch, *, task="translate", **changes):
    """Make steps whose losses are not read, on the device that stands for a GPU."""
    recipe = make_recipe(data[task], **{"task": task, "dropout": 0.1, **COMMON, **changes})
    trainer = make_meta_trainer(recipe, tmp_path / "run", monkeypatch)
    trainer.state.step = 1  # the first step is logged, and therefore read
    run_steps(trainer, 2)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).any()),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.cpu(),
    ],
    ids=["item", "bool", "nonzero", "index", "masked_select", "cpu"],
)
def test_host_sync_is_noticed(read):
    with RefuseHostSync(), pytest.raises(HostSyncError):
        read(torch.ones(3, device="meta"))


def test_losses_that_are_read_late_give_the_same_run(data, tmp_path, monkeypatch):
    recipe = make_recipe(
        data["translate"], steps=60, log_every=25, valid_every=20, save_every=20, monitor_every=30
    )
    now, late = RecordingCallback(), RecordingCallback()
    train(recipe, tmp_path / "now", callback=now)
    waits = []
    monkeypatch.setattr(Trainer, "defers_reading", True)
    original = Trainer._read_pending
    monkeypatch.setattr(
        Trainer, "_read_pending", lambda self: (waits.append(len(self.pending)), original(self))[1]
    )
    train(recipe, tmp_path / "late", callback=late)
    assert max(waits) == trainer_module.MAX_PENDING
    assert late.steps == now.steps
    assert digest(tmp_path / "late") == digest(tmp_path / "now")
    assert read_values(tmp_path / "late") == read_values(tmp_path / "now")


def test_pause_reads_the_losses_before(data, tmp_path, monkeypatch):
    recipe = make_recipe(data["translate"], steps=30, log_every=30, valid_every=0, save_every=30)
    monkeypatch.setattr(Trainer, "defers_reading", True)
    callback = RecordingCallback()
    train(recipe, tmp_path / "run", callback=callback, until=7)
    assert [step for step, _ in callback.steps] == list(range(1, 8))
    train(recipe, tmp_path / "run")
    train(recipe, tmp_path / "whole")
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


@pytest.mark.parametrize(
    ("broken_step", "optimizer"), [(5, "adamw"), (10, "adamw"), (10, "muon"), (10, "radam")]
)
def test_nonfinite_loss_is_found_late_with_the_same_report(
    data, tmp_path, monkeypatch, broken_step, optimizer
):
    recipe = make_recipe(
        data["lm"],
        "lm",
        steps=40,
        log_every=12,
        valid_every=0,
        save_every=40,
        optimizer=optimizer,
    )
    original = trainer_module.forward_backward

    def fail_later(session, batches, step):
        totals = original(session, batches, step)
        if step == broken_step:
            next(session.model.parameters()).grad.fill_(math.nan)
            return totals * math.nan
        return totals

    monkeypatch.setattr(trainer_module, "forward_backward", fail_later)
    outcomes, weights = [], []
    for late in (False, True):
        monkeypatch.setattr(Trainer, "defers_reading", late)
        trainers = []
        build = Trainer.__init__
        monkeypatch.setattr(
            Trainer,
            "__init__",
            lambda self, *args, build=build, trainers=trainers: (
                trainers.append(self),
                build(self, *args),
            )[0],
        )
        outcomes.append(train(recipe, tmp_path / f"late-{late}"))
        weights.append([each.detach().clone() for each in trainers[0].weights])
        monkeypatch.setattr(Trainer, "__init__", build)
    now, late = outcomes
    assert now.ending == late.ending == "diverged"
    assert (now.reason, now.state.step, now.state.tokens) == (
        late.reason,
        late.state.step,
        late.state.tokens,
    )
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))
    assert read_values(tmp_path / "late-True") == read_values(tmp_path / "late-False")


def read_values(folder):
    rows = read_rows(folder / "rows.jsonl")
    return [repr(row) for row in rows if row["name"] != "tokens_per_second"]
