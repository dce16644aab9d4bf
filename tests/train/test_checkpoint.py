"""Checkpoints: atomic writes, checksums, pruning."""

import json
import os

import pytest
import torch
from safetensors import SafetensorError

from addnorm.models import base
from addnorm.train.checkpoint import (
    Checkpoint,
    iter_valid_checkpoints,
    list_steps,
    load,
    prune,
    read_state,
    save,
)

TENSORS = {"model": {"a": torch.arange(6.0).reshape(2, 3)}, "optimizer": {"a|m": torch.ones(3)}}


def save_checkpoint(folder, step, **state):
    save(folder, Checkpoint(step, TENSORS, {"note": "x", **state}))


def test_saved_checkpoint_round_trips(tmp_path):
    save_checkpoint(tmp_path, 7, progress={"best": float("inf")})
    checkpoint = load(tmp_path, 7)
    assert checkpoint.step == 7
    assert checkpoint.state["note"] == "x"
    assert checkpoint.state["progress"] == {"best": float("inf")}
    for group, tensors in TENSORS.items():
        assert checkpoint.tensors[group].keys() == tensors.keys()
        for name, value in tensors.items():
            assert checkpoint.tensors[group][name].equal(value)
    assert [path.name for path in tmp_path.iterdir()] == ["step-7"]
    json.loads((tmp_path / "step-7" / "state.json").read_text())


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "gone"])
def test_damaged_checkpoint_is_skipped(tmp_path, name, damage):
    save_checkpoint(tmp_path, 4)
    save_checkpoint(tmp_path, 8)
    path = tmp_path / "step-8" / name
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "flip":
        for offset in range(0, len(data), 7):  # every seventh byte, one at a time
            path.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
            assert load(tmp_path, 8) is None, offset
    else:
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"")
    assert load(tmp_path, 8) is None
    assert next(iter_valid_checkpoints(tmp_path)).step == 4


def test_full_disk_keeps_existing_checkpoints(tmp_path, monkeypatch):
    save_checkpoint(tmp_path, 4)

    def full(*_):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(base, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path, 8)
    assert [path.name for path in tmp_path.iterdir()] == ["step-4"]
    assert next(iter_valid_checkpoints(tmp_path)).step == 4


def test_save_replaces_checkpoint_of_same_step(tmp_path):
    save_checkpoint(tmp_path, 4)
    save_checkpoint(tmp_path, 4, note="y")
    assert load(tmp_path, 4).state["note"] == "y"


def test_prune_keeps_newest_and_protected(tmp_path):
    for step in (2, 4, 10, 12, 30):
        save_checkpoint(tmp_path, step)
    (tmp_path / ".step-40.123").mkdir()
    (tmp_path / "step-odd").mkdir()
    prune(tmp_path, keep=2, protected={4})
    assert list_steps(tmp_path) == [30, 12, 4]
    assert not (tmp_path / ".step-40.123").exists()


def test_empty_folder_has_no_checkpoints(tmp_path):
    assert list_steps(tmp_path / "nowhere") == []
    assert list(iter_valid_checkpoints(tmp_path / "nowhere")) == []


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b"null", b"3", b'"x"', b"[" * 100_000, b'{"checksum": "x"}', b"\xff"],
)
def test_state_of_any_other_shape_is_damage(tmp_path, content):
    save_checkpoint(tmp_path, 4)
    save_checkpoint(tmp_path, 8)
    (tmp_path / "step-8" / "state.json").write_bytes(content)
    assert load(tmp_path, 8) is None and read_state(tmp_path, 8) is None
    assert next(iter_valid_checkpoints(tmp_path)).step == 4


@pytest.mark.parametrize(
    "progress", [[], 3, {"step": "x"}, {"position": 3}, {"rows": None}, {"color": 1}]
)
def test_progress_of_another_type_is_damage(tmp_path, progress):
    save_checkpoint(tmp_path, 4, progress=progress)  # with a valid checksum
    assert load(tmp_path, 4) is None


def test_checkpoint_has_the_rights_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        save_checkpoint(tmp_path, 4)
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "step-4").iterdir()}
    assert modes == {0o640}
