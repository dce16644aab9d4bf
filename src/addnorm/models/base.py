"""What every model has in common: a config, stacks, a start, a folder."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.models.config import Config
from addnorm.stacks import Decoder, Encoder, Stack
from addnorm.stacks.init import draw, restart

WEIGHTS, CONFIG = "model.safetensors", "config.json"


class Model(nn.Module, ABC):
    """Embedding, stacks and head, built from a config and started for its wiring."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    @property
    @abstractmethod
    def stacks(self) -> tuple[Encoder | Decoder, ...]:
        """Its stacks, the one that reads first."""

    @abstractmethod
    def edges(self) -> Iterator[tuple[str, Tensor]]:
        """(role, weight) of what is no stack: embedding and head."""

    def initialise(self, *, scheme: str | None = None, seed: int | None = None) -> "Model":
        """Start anew; see `Stack.initialise`. Embedding and head start as the last stack wants."""
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            restart(self)
            for stack in self.stacks:
                stack.initialise(scheme=scheme)
            wiring = self.stacks[-1].wiring
            for role, weight in self.edges():
                draw(weight, scheme=scheme or wiring.scheme, role=role, gain=wiring.gain(role))
        self.after_step()
        return self

    def after_step(self) -> None:
        """To be called after every step of the optimizer; only some wirings do anything (nGPT)."""
        with torch.no_grad():
            for stack in self.stacks:
                stack.after_step()
            self.stacks[-1].wiring.after_step(self.edges())

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

    def save(self, folder: str | Path) -> None:
        """Write `config.json` and `model.safetensors`, each under a temporary name first."""
        if any(parameter.is_meta for parameter in self.parameters()):
            raise UserError("a model on the meta device has no weights to save; make it real first")
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        weights = folder / f".{WEIGHTS}.{os.getpid()}"
        config = folder / f".{CONFIG}.{os.getpid()}"
        try:
            config.write_text(self.config.to_json(), encoding="utf-8")
            save_file(
                {name: value.contiguous() for name, value in self.state_dict().items()}, weights
            )
            weights.replace(folder / WEIGHTS)
            config.replace(folder / CONFIG)
        finally:
            weights.unlink(missing_ok=True)
            config.unlink(missing_ok=True)

    def load(self, folder: str | Path) -> "Model":
        """Read the weights that were saved in a folder."""
        path = Path(folder) / WEIGHTS
        if not path.is_file():
            raise UserError(f"no weights at {path}; wanted a folder that a model was saved to")
        try:
            self.load_state_dict(load_file(path))
        except SafetensorError as problem:
            raise UserError(f"{path} is damaged ({problem})") from None
        return self


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
            **config.blocks,
            **changes,
        }
    )
