# %% [markdown]
# # Export a DeepNorm translator to CTranslate2
#
# CTranslate2 is a fast engine for translation on CPUs. It knows Post-LN and Pre-LN, but not DeepNorm. DeepNorm folds
# into Post-LN: with changed weights the plain wiring computes the same outputs. `addnorm.export` folds, writes, opens the
# files with the engine, and compares before it keeps them.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

import addnorm

folder = Path(tempfile.mkdtemp())


def run(*arguments: str, lines: str = "") -> str:
    """Run a command of addnorm and return what it prints."""
    command = [sys.executable, "-m", "addnorm", *arguments]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# %% [markdown]
# ## Train a small translator of dates
#
# A short training for an example; 400 steps and `dim=64` translate all test lines correctly.

# %%
run("data", "demo", "--task", "translate", "-o", "corpus")
sizes = ("dim=32", "depth=2", "heads=4", "steps=30", "batch_tokens=1000", "lr=3e-3")
run("train", "translate", "data=corpus", "wiring=deepnorm", *sizes, "-o", "run")
print("trained:", sorted(path.name for path in (folder / "run").iterdir())[:3])

# %% [markdown]
# ## Export and prove

# %%
report = addnorm.export(folder / "run", to="ctranslate2", out=folder / "fast")
print("target:", report.target)
print("grade:", report.grade)
print("difference below 1e-4:", report.max_error < 1e-4)

# %% [markdown]
# ## Translate with both
#
# The same command reads the run and the exported folder.

# %%
line = "Sunday, May 3, 2043\n"
ours, theirs = (run("translate", name, lines=line) for name in ("run", "fast"))
print("same translation:", ours == theirs)

# %% [markdown]
# `quantize="int8"` makes the model smaller and faster; the report then says how many outputs stayed the same. See the guide
# to [export](../docs/guides/export.md).
