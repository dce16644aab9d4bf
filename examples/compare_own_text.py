# %% [markdown]
# # Which wiring trains on my text?
#
# Make a corpus from a text file, train two wirings on it at two learning rates and two seeds, and read the verdict.
# The text here is made up; put your own file in its place.

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
# One line is one document. A tenth of the lines is kept for validation.

# %%
command = ["data", "files", "--text", str(text), "--valid", "0.1", "--test", "0"]
done = subprocess.run(
    [sys.executable, "-m", "addnorm", *command, "-o", str(folder / "corpus")], capture_output=True
)
print("exit code", done.returncode)
print(sorted(path.name for path in (folder / "corpus").iterdir()))

# %% [markdown]
# ## The comparison
#
# Every combination of wiring, learning rate and seed is one training run, a *cell*. All cells see the same batches in
# the same order. The main guard is needed in a script, because cells run in processes of their own.

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
# `study.verdict` states the answer in sentences, and `report.html` in the folder of the study shows it with the gradients and
# activations of every model. The same comparison on the command line:
#
# ```sh
# addnorm compare --task my.yaml --wiring pre_ln,post_ln --depth 6 --lr 1e-3,1e-2 --seeds 2 --steps 40 -o study
# ```
