# %% [markdown]
# # Export a DeepNorm translator to CTranslate2
#
# CTranslate2 is a fast engine for translation on CPUs. It knows Post-LN and Pre-LN, but not
# DeepNorm. DeepNorm folds into Post-LN: with changed weights the plain wiring computes the same
# outputs. `addnorm.export` folds the model, writes the files, opens them with the engine, and
# compares the outputs before it keeps them.

# %%
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import addnorm

folder = Path(tempfile.mkdtemp())


def run(*arguments: str, text: str = "") -> str:
    """Run a command of addnorm and return what it prints."""
    command = [sys.executable, "-m", "addnorm", *arguments]
    done = subprocess.run(
        command, input=text, capture_output=True, text=True, cwd=folder, check=True
    )
    return done.stdout.rstrip("\n")


# %% [markdown]
# ## Train a small translator
#
# The demo corpus has dates, numbers, units and names. 30 steps are far too few to translate well;
# they are enough to compare two engines.

# %%
run("data", "demo", "--task", "translate", "-o", "corpus")
sizes = ("dim=32", "depth=2", "heads=4", "steps=30", "batch_tokens=1000", "lr=3e-3")
run("train", "translate", "data=corpus", "wiring=deepnorm", *sizes, "-o", "run")

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
# The same command reads the run and the exported folder. Both must search in the same way: the
# default length penalty of a run is 0.6, which CTranslate2 does not have. `mean` exists in both.

# %%
with open(folder / "corpus" / "test.jsonl", encoding="utf-8") as records:
    sources = [json.loads(next(records))["source"] for _ in range(20)]
options = ("--length-penalty", "mean", "--max-new-tokens", "30")
ours, theirs = (
    run("translate", name, *options, text="\n".join(sources)).splitlines()
    for name in ("run", "fast")
)
print("same translations:", sum(map(str.__eq__, ours, theirs)), "of", len(sources))

# %% [markdown]
# `quantize="int8"` makes the model smaller and faster; the report then says how many outputs stayed
# the same. See the guide to [export](../docs/guides/export.md).
