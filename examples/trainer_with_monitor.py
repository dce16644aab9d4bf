# %% [markdown]
# # Watch a Hugging Face Trainer
#
# `MonitorCallback` measures every residual site of the model while the Trainer trains it:
# gradients, the size of the stream, updates, attention. The trained weights are the same with and
# without it. The model is a small random GPT-2; nothing is downloaded.

# %%
import tempfile
import warnings
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments
from transformers.utils import logging

from addnorm.monitor.hugging_face import MonitorCallback

logging.disable_progress_bar()
warnings.simplefilter("ignore")
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Data and model
#
# Sequences that count upwards in steps of one to four.

# %%
torch.manual_seed(0)
starts, steps = torch.randint(50, (256, 1)), torch.randint(1, 5, (256, 1))
sequences = (starts + steps * torch.arange(16)) % 50
examples = [{"input_ids": ids, "labels": ids} for ids in sequences]
config = GPT2Config(
    n_layer=4, n_embd=32, n_head=4, vocab_size=50, n_positions=16, bos_token_id=0, eos_token_id=0
)
model = GPT2LMHeadModel(config)

# %% [markdown]
# ## Train

# %%
callback = MonitorCallback(every=10)
arguments = TrainingArguments(
    str(folder / "run"),
    max_steps=40,
    learning_rate=1e-3,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    log_level="error",
)
trainer = Trainer(model=model, args=arguments, train_dataset=examples, callbacks=[callback])
trainer.remove_callback(PrinterCallback)
result = trainer.train()
print("steps:", result.global_step)

# %% [markdown]
# ## Read the measurements
#
# Each sub-layer is one site. GPT-2 has two per layer, both Pre-LN.

# %%
monitor = callback.monitor
print(len(monitor.sites), "sites; the first:", monitor.sites[0])
last = max(row["step"] for row in monitor.rows())
for row in monitor.rows():
    if row["name"] == "gradient_norm" and row["step"] == last and row.get("site") in (0, 7):
        print(f"gradient of site {row['site']} at step {last}: {row['value']:.2f}")
print("diagnosis:", monitor.diagnosis() or "nothing to report")

# %% [markdown]
# `addnorm report run/monitor` draws the page, and `addnorm doctor run/monitor` prints the
# diagnosis. The guide [watch your training](../docs/guides/watch-your-training.md) has the
# callbacks for Lightning and for loops of your own.
