"""What every model has in common: a config, stacks, a start, a folder."""

import errno
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.files import atomic_write
from addnorm.kernels.cross_entropy import LossSums, cross_entropy
from addnorm.models.config import Config
from addnorm.stacks import Decoder, Encoder, Stack
from addnorm.stacks.init import init_weight_, reset_all_parameters

WEIGHTS_FILE, CONFIG_FILE = "model.safetensors", "config.json"


class WiredModule(nn.Module, ABC):
    """Stacks and what stands around them, started for their wiring; what optimizers train."""

    @property
    @abstractmethod
    def stacks(self) -> tuple[Stack, ...]:
        """Its stacks, the one that reads first."""

    @abstractmethod
    def outer_weights(self) -> Iterator[tuple[str, Tensor]]:
        """(role, weight) of what is no stack: embedding and head."""

    def init_weights(self, *, scheme: str | None = None, seed: int | None = None) -> Self:
        """Start anew; see `Stack.initialise`. Embedding and head start as the last stack wants."""
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            reset_all_parameters(self)
            for stack in self.stacks:
                stack.init_weights(scheme=scheme)
            wiring = self.stacks[-1].wiring
            for role, weight in self.outer_weights():
                init_weight_(
                    weight, scheme=scheme or wiring.scheme, role=role, gain=wiring.gain(role)
                )
        self.after_step()
        return self

    def calibrate(self, *inputs: Tensor, **options: Tensor | None) -> None:
        """Give every stack its data-dependent start, where its wiring has one (Admin), from one
        batch; called as the model is.
        """
        training = self.training
        hooks = [
            stack.register_forward_pre_hook(
                lambda stack, args, given: stack.calibrate(*args, **given), with_kwargs=True
            )
            for stack in self.stacks
        ]
        try:
            with torch.no_grad():
                self.eval()(*inputs, **options)
        finally:
            self.train(training)
            for hook in hooks:
                hook.remove()

    def after_step(self) -> None:
        """To be called after every step of the optimizer; only some wirings do anything (nGPT)."""
        with torch.no_grad():
            for stack in self.stacks:
                stack.after_step()
            self.stacks[-1].wiring.after_step(self.outer_weights())

    def no_decay(self) -> set[str]:
        """Parameters that weight decay must leave alone: norms, scales, gates, biases."""
        stacks = {name: stack for name, stack in self.named_modules() if isinstance(stack, Stack)}
        inside = {f"{name}.{spared}" for name in stacks for spared in stacks[name].no_decay()}
        outside = tuple(f"{name}." for name in stacks)
        return inside | {
            name
            for name, parameter in self.named_parameters()
            if parameter.ndim < 2 and not name.startswith(outside)
        }


class Model(WiredModule):
    """Embedding, stacks and head, built from a config and started for its wiring."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    @property
    @abstractmethod
    def stacks(self) -> tuple[Encoder | Decoder, ...]:
        """Its stacks, the one that reads first."""

    def loss(
        self, targets: Tensor, *inputs: Tensor, smoothing: float = 0.0, **options: Tensor | None
    ) -> LossSums:
        """Cross entropy of what the model answers to the inputs, as sums over what is asked.

        asked: the right class of each logit, IGNORE (-100) where nothing is asked
        smoothing: share of the target that is given to all classes
        """
        return cross_entropy(self(*inputs, **options), targets, smoothing=smoothing)

    def save(self, folder: str | Path) -> None:
        """Write `config.json` and `model.safetensors`, each under a temporary name first."""
        if any(parameter.is_meta for parameter in self.parameters()):
            raise UserError("a model on the meta device has no weights to save; make it real first")
        values = self.state_dict()
        folder = Path(folder)
        with (
            atomic_write(folder / CONFIG_FILE) as config,
            atomic_write(folder / WEIGHTS_FILE) as weights,
        ):
            config.write_text(self.config.to_json(), encoding="utf-8")
            save_tensors(values, weights)

    def load(self, folder: str | Path) -> "Model":
        """Read the weights that were saved in a folder."""
        path = Path(folder) / WEIGHTS_FILE
        if not path.is_file():
            raise UserError(f"no weights at {path}; wanted a folder that a model was saved to")
        try:
            self.load_state_dict(load_file(path))
        except SafetensorError as problem:
            raise UserError(f"{path} is damaged ({problem})") from None
        return self


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write safetensors; a disk that is full is an OSError, as with every other file."""
    try:
        save_file({name: value.contiguous() for name, value in tensors.items()}, path)
    except SafetensorError as problem:
        words = str(problem).removeprefix("Error while serializing: ")
        code = re.search(r"os error (\d+)", words)  # the only place where it stands
        raise OSError(int(code[1]) if code else errno.EIO, words) from None


def make_stack(kind: type[Encoder] | type[Decoder], config: Config, **changes: Any) -> Any:
    """A stack as the config wants it."""
    return kind(
        **{
            "dim": config.dim,
            "depth": config.depth,
            "heads": config.heads,
            "wiring": config.wiring,
            "norm": config.norm,
            "positions": config.positions,
            "embed_norm": config.embed_norm,
            "dropout": config.dropout,
            **config.layer_options,
            **changes,
        }
    )
