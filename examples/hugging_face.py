r"""A Hugging Face Trainer as a task of `addnorm compare`.

addnorm compare --task examples/hugging_face.py:train --axis activation=gelu_new,relu \
    --axis scheduler=constant,cosine --lr 1e-3,1e-2 --depth 2 --steps 100 --seeds 3 -o hf

The model is a random GPT-2 of `transformers`, without a download. The Trainer saves checkpoints
into the folder of the cell, so that an interrupted cell resumes where it was.
"""

from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import addnorm

VOCAB, LENGTH = 64, 32


class Sequences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sequences that count upwards in steps of one to four, modulo the vocabulary."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        start = torch.randint(VOCAB, (size, 1), generator=generator)
        step = torch.randint(1, 5, (size, 1), generator=generator)
        self.ids = (start + step * torch.arange(LENGTH)) % VOCAB

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


class LogToCell(TrainerCallback):
    """Passes the losses of the Trainer to the cell."""

    def __init__(self, cell: addnorm.Cell) -> None:
        self.cell = cell

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        names = {"loss": "train_loss", "eval_loss": "valid_loss"}
        losses = {names[name]: value for name, value in (logs or {}).items() if name in names}
        self.cell.log(state.global_step, **losses)


@addnorm.task("hf_gpt2", baseline=4.16, defaults={"depth": 2})  # log(64), a uniform guess
def train(cell: addnorm.Cell) -> None:
    """Train one cell of the comparison."""
    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=LENGTH,
        n_embd=cell.get("dim", 32),
        n_layer=cell.depth,
        n_head=2,
        activation_function=cell.get("activation", "gelu_new"),
    )
    every = max(1, cell.steps // 4)
    arguments = TrainingArguments(
        output_dir=str(cell.folder),
        max_steps=cell.steps,
        learning_rate=cell.lr,
        warmup_steps=cell.warmup,
        lr_scheduler_type=cell.get("scheduler", "constant_with_warmup"),
        seed=cell.seed,
        per_device_train_batch_size=8,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=every,
        save_steps=every,
        save_total_limit=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=Sequences(1024, seed=1),
        eval_dataset=Sequences(64, seed=2),
        callbacks=[LogToCell(cell)],
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(cell.folder)))
