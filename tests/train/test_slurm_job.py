"""The batch script of the guide, on a real SLURM cluster of one node."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from addnorm.train.trainer import train
from tests.comparison.engines.test_slurm_cluster import cluster, pytestmark  # noqa: F401
from tests.train.cases import make_recipe, write_number_corpus
from tests.train.test_distributed import read_losses

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "scale.md"


def read_script():
    """Return the script of the guide that has #SBATCH lines."""
    (script,) = re.findall(r"```sh\n(#!/bin/bash\n#SBATCH.*?)```", GUIDE.read_text(), re.DOTALL)
    return script


def test_batch_script_of_the_guide_trains(cluster, tmp_path):  # noqa: F811
    corpus = write_number_corpus(tmp_path / "corpus", "lm", count=200)
    recipe = make_recipe(corpus.folder, "lm", dropout=0.0, monitor_every=0, steps=6)
    train(recipe, tmp_path / "one")
    recipe.save(tmp_path / "recipe.yaml")
    # Only the program changes: the first `torchrun` in the PATH may be of another environment.
    torchrun = f"{sys.executable} -m torch.distributed.run"
    (tmp_path / "train.sh").write_text(read_script().replace("torchrun", torchrun))
    done = subprocess.run(
        [
            *("sbatch", "--wait", "--nodes=1", "--gpus-per-node=2", "--time=20"),
            *("--output", str(tmp_path / "log"), "train.sh"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    log = (tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""
    assert done.returncode == 0, done.stderr + log
    assert "2 processes (ddp)" in log
    assert read_losses(tmp_path / "run") == pytest.approx(read_losses(tmp_path / "one"), rel=1e-5)
