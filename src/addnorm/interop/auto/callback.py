"""Callback of transformers' Trainer for wirings with constraints on their weights."""

from typing import Any

from transformers import TrainerCallback

from addnorm.models import Model


class AfterStepCallback(TrainerCallback):
    """Calls `after_step` of addnorm models after every optimizer step; nGPT needs it.

    >>> from transformers import Trainer
    >>> trainer = Trainer(model, callbacks=[AfterStepCallback()])  # doctest: +SKIP
    """

    def on_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, **options: Any
    ) -> None:
        """Apply the constraints of the wirings."""
        for module in model.modules():
            if isinstance(module, Model):
                module.after_step()
