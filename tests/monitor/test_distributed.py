"""Two processes, DDP or FSDP2: the bits and rows of training without a monitor, or alone."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
import addnorm
from tests.monitor.models import TorchModel, build, train

mode, rank, store, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
torch.set_num_threads(1)
distributed.init_process_group(
    "gloo", store=distributed.FileStore(store, 2), rank=rank, world_size=2
)


def run(is_parallel, is_monitored):
    model = build(lambda: TorchModel(dropout=0.0))
    wrapped = model
    if is_parallel and mode == "ddp":
        wrapped = DistributedDataParallel(model)
    elif is_parallel:
        for layer in model.encoder.layers:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = None
    if is_monitored:
        monitor = addnorm.Monitor(
            wrapped, optimizer, every=2, folder=folder if is_parallel else None
        )
    train(model, optimizer, monitor, run=wrapped, accumulate=2)
    if monitor is not None:
        monitor.close()
    return model, monitor


_, alone = run(False, True)
plain, _ = run(True, False)
model, monitor = run(True, True)
assert monitor.notes == (), monitor.notes
assert [site.label for site in monitor.sites] == [site.label for site in alone.sites]
assert [site.weights for site in monitor.sites] == [site.weights for site in alone.sites]
rows, expected = monitor.rows(), alone.rows()
assert [(r["step"], r["name"], r["site"]) for r in rows] == [
    (r["step"], r["name"], r["site"]) for r in expected
]
for row, other in zip(rows, expected):
    assert abs(row["value"] - other["value"]) <= 1e-3 * abs(other["value"]) + 1e-5, (row, other)
for one, other in zip(model.parameters(), plain.parameters()):
    one, other = (each.to_local() if mode == "fsdp" else each for each in (one, other))
    assert torch.equal(one, other)
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_two_processes(mode, tmp_path):
    store, folder = str(tmp_path / "store"), str(tmp_path / "watch")
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, mode, str(rank), store, folder],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=600)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], errors
    lines = (tmp_path / "watch" / "rows.jsonl").read_text().splitlines()
    assert sum('"ended"' in line for line in lines) == 1  # one process writes
