# %% [markdown]
# # Which wiring trains on my text?
#
# Make a corpus from a text file, train two wirings on it at two learning rates and with two seeds,
# and read the verdict. The text here is made up; put your own file in its place.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

import addnorm

folder = Path(tempfile.mkdtemp())
text = folder / "my.txt"
lines = [f"Line {number} of {100 + number % 7} words about nothing." for number in range(400)]
text.write_text("\n".join(lines), encoding="utf-8")

# %% [markdown]
# ## The corpus
#
# The file is one document, and its last tenth is kept for validation. With `--lines`, each line is
# a text of its own.

# %%
command = [sys.executable, "-m", "addnorm", "data", "files", "--text", str(text)]
options = ["--valid", "0.1", "--test", "0", "-o", str(folder / "corpus")]
subprocess.run([*command, *options], check=True, capture_output=True)
print(sorted(path.name for path in (folder / "corpus").iterdir()))

# %% [markdown]
# ## The comparison
#
# Every combination of wiring, learning rate and seed is one training run, a *cell*. All cells see
# the same batches in the same order. Cells run in processes of their own, so a script needs the
# `__main__` guard.

# %%
if __name__ == "__main__":
    study = addnorm.compare(
        {
            "task": "lm",
            "data": str(folder / "corpus"),
            "wiring": ["pre_ln", "post_ln"],
            "depth": 6,
            "lr": [1e-3, 1e-2],
            "seeds": 2,
            "steps": 40,
            "dim": 32,
            "heads": 2,
            "batch_tokens": 256,
            "tokenizer": "char",
        },
        folder / "study",
        progress=False,
    )
    for cell in study.cells:
        print(f"{cell.cell.arm.name:8} lr {cell.cell.lr:<6} seed {cell.cell.seed}: {cell.state}")

# %% [markdown]
# `study.verdict` states the answer in sentences. `report.html` in the folder of the study shows it
# with the gradients and activations of every model. The same comparison on the command line, where
# `my.yaml` has the lines `task: lm` and `data: corpus`:
#
# ```sh
# addnorm compare --task my.yaml --wiring pre_ln,post_ln --depth 6 --lr 1e-3,1e-2 --seeds 2 -o study
# ```
