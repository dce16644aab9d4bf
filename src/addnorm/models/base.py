"""Base classes of models: initialization, calibration, weight decay, saving and loading."""

import errno
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from typing_extensions import Self

from addnorm.core.display import render_html
from addnorm.core.errors import UserError
from addnorm.core.files import (
    atomic_write,
    check_file,
    file_checksum,
    read_json_and_files,
    temporary_folder,
    write_json,
)
from addnorm.core.validation import check_path
from addnorm.kernels.cross_entropy import LossSums, cross_entropy
from addnorm.models.check_config import check_matches_config
from addnorm.models.config import CONFIG_EDIT_HINT, CONFIG_HINT, Config
from addnorm.models.scaling import compare_outer_weights, outer_init_ratios, wide_config
from addnorm.models.training_interface import TrainingInterface
from addnorm.stacks import Decoder, Encoder, Stack
from addnorm.stacks.init import check_seed, init_weight_, reset_all_parameters
from addnorm.stacks.scaling import ParameterSize

WEIGHTS_FILE, CONFIG_FILE = "model.safetensors", "config.json"


class WiredModule(nn.Module, ABC):
    """Module that contains stacks and outer weights (embedding, head), initialized together."""

    @property
    @abstractmethod
    def stacks(self) -> tuple[Stack, ...]:
        """Stacks in the order of execution."""

    @abstractmethod
    def outer_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (role, weight) of the weights outside of stacks: embedding and head."""

    def init_weights(self, *, scheme: str | None = None, seed: int | None = None) -> Self:
        """Initialize all weights as the wirings prescribe; see `Stack.init_weights`.

        The wiring of the last stack determines the outer weights.

        Args:
            scheme: initialization scheme; that of each wiring if None
            seed: seed; the state of PyTorch's generator is used, and advanced, if None
        """
        check_seed(seed)
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            reset_all_parameters(self)
            for stack in self.stacks:
                stack.init_weights(scheme=scheme)
            wiring = self.stacks[-1].wiring
            for (role, weight), (factor, ratios) in zip(
                self.outer_weights(), self._outer_ratios(), strict=True
            ):
                init_weight_(
                    weight,
                    scheme=wiring.scheme if scheme is None else scheme,
                    role=role,
                    gain=wiring.gain(role) * factor,
                    ratios=ratios,
                )
        self.after_step()
        return self

    def outer_sizes(self, ratio: float) -> list[ParameterSize]:
        """Return what a scale must know about each of `outer_weights`.

        ratio: width of the model over that of the scale's base
        """
        return [
            ParameterSize("vector" if role == "bias" else "table")
            for role, _ in self.outer_weights()
        ]

    def _outer_ratios(self) -> list[tuple[float, tuple[float, float]]]:
        """Return the factor on the deviation of each outer weight, and its axes over the base's."""
        rule = self.stacks[-1].scale_rule
        if rule is None:
            return [(1.0, (1.0, 1.0)) for _ in self.outer_weights()]
        sizes = self.outer_sizes(rule.width_ratio(self.stacks[-1].plan.dim))
        return [outer_init_ratios(rule, size) for size in sizes]

    def calibrate(self, *inputs: Tensor, **options: Tensor | None) -> None:
        """Run the data-dependent initialization of wirings that have one (Admin) on a batch.

        The arguments are those of `forward`.
        """
        training = self.training
        hooks = [
            stack.register_forward_pre_hook(
                lambda stack, args, kwargs: stack.calibrate(*args, **kwargs), with_kwargs=True
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
        """Apply the constraints of the wirings (nGPT); call it after every optimizer step."""
        with torch.no_grad():
            for stack in self.stacks:
                stack.after_step()
            self.stacks[-1].wiring.after_step(self.outer_weights())

    def no_decay(self) -> set[str]:
        """Return the names of parameters without weight decay: norms, scales, gates, biases."""
        stacks = {name: stack for name, stack in self.named_modules() if isinstance(stack, Stack)}
        inside = {f"{name}.{inner}" for name in stacks for inner in stacks[name].no_decay()}
        prefixes = tuple(f"{name}." for name in stacks)
        return inside | {
            name
            for name, parameter in self.named_parameters()
            if parameter.ndim < 2 and not name.startswith(prefixes)
        }


class Model(TrainingInterface, WiredModule):
    """Embedding, stacks and head built from a `Config`.

    Besides the arguments of `forward`, a call takes the keyword inputs of Hugging Face models, such
    as `input_ids`, `attention_mask` and `labels`; it then returns a `ModelOutput`.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config

    @property
    @abstractmethod
    def stacks(self) -> tuple[Encoder | Decoder, ...]: ...

    def outer_sizes(self, ratio: float) -> list[ParameterSize]:
        with torch.device("meta"):
            wide = type(self)(wide_config(self.config))
        return compare_outer_weights(self.outer_weights(), wide.outer_weights(), ratio)

    def _repr_html_(self) -> str:
        config = self.config
        facts: dict[str, object] = {
            "kind": config.kind,
            "wiring": config.wiring,
            "norm": config.norm,
            "scale": config.scale,
        }
        facts |= {"depth": config.depth, "dim": config.dim, "heads": config.heads}
        facts["parameters"] = f"{sum(weight.numel() for weight in self.parameters()):,}"
        rows = [(name, value) for name, value in facts.items() if value is not None]
        head = ("property", "value")
        return render_html(type(self).__name__, head=head, rows=rows, details=str(self))

    def loss(
        self, targets: Tensor, *inputs: Tensor, smoothing: float = 0.0, **options: Tensor | None
    ) -> LossSums:
        """Return the cross entropy of the model's logits, as sums over the targets.

        Args:
            targets: class of each logit vector; IGNORE (-100) excludes a position
            *inputs: inputs of `forward`
            smoothing: label smoothing, the fraction of the target spread over all classes
            **options: masks and other keyword arguments of `forward`
        """
        return cross_entropy(self(*inputs, **options), targets, smoothing=smoothing)

    def rewire(self, **changes: Any) -> tuple[Any, Any]:
        """Return a model of another arrangement and a report; see `addnorm.rewire`."""
        from addnorm import rewire

        return rewire(self, **changes)

    def save(self, folder: str | Path) -> None:
        """Save `config.json` and `model.safetensors` to a folder, with their checksums.

        Raises:
            UserError: the model has no weights, or parts of it were replaced, so that its config
                does not describe it
        """
        if any(parameter.is_meta for parameter in self.parameters()):
            raise UserError(
                "expected a model with weights to save, got one on the meta device; call "
                "to_empty(device=...) and init_weights() first"
            )
        check_path("folder", folder)
        check_matches_config(self)
        tensors = self.state_dict()
        folder = Path(folder)
        with atomic_write(folder / WEIGHTS_FILE) as weights:
            save_tensors(tensors, weights)
            checksums = {WEIGHTS_FILE: file_checksum(weights)}
        write_json(folder / CONFIG_FILE, self.config.to_dict(), files=checksums)

    def load(self, folder: str | Path) -> "Model":
        """Load the weights that `save` wrote to a folder.

        Raises:
            UserError: there are no weights, they are damaged, or they do not fit the model
        """
        check_path("folder", folder)
        load_weights(self, read_weights(folder), source=Path(folder) / WEIGHTS_FILE)
        return self


def read_weights(folder: str | Path) -> dict[str, Tensor]:
    """Return the weights that `Model.save` wrote to a folder, after verifying their checksum."""
    path = Path(folder) / WEIGHTS_FILE
    if not path.is_file():
        raise UserError(f"expected a folder written by save(), got no weights at {path}")
    _, checksums = read_json_and_files(
        Path(folder) / CONFIG_FILE, hint=CONFIG_HINT, edit_hint=CONFIG_EDIT_HINT
    )
    if WEIGHTS_FILE in checksums:
        check_file(path, checksums[WEIGHTS_FILE], hint="restore it, or save the model again")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged ({' '.join(str(error).split())})") from None


def load_weights(model: nn.Module, weights: dict[str, Tensor], *, source: Path | str) -> None:
    """Load weights into a model.

    Args:
        model: the model
        weights: all tensors of its state
        source: where the weights come from, for error messages

    Raises:
        UserError: a tensor is missing, is not part of the model or has another shape
    """
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        check_weights(model, weights, source=source)  # names the first difference in one line
        raise _mismatch_error(source, " ".join(str(error).split())[:500]) from None


def check_weights(model: nn.Module, weights: dict[str, Tensor], *, source: Path | str) -> None:
    """Raise `UserError` unless weights have the names and shapes of a model's tensors.

    The model may be on the meta device, so that weights are checked before memory is allocated.
    """
    state = model.state_dict()
    # The arrangement of a stack has no fixed size; loading it raises an error of its own.
    names = sorted(name for name in {*state, *weights} if not name.endswith("_extra_state"))
    for name in names:
        expected, got = (
            f"{name} of shape {list(each[name].shape)}" if name in each else f"no {name}"
            for each in (state, weights)
        )
        if expected != got:
            raise _mismatch_error(source, f"expected {expected}, got {got}")


def _mismatch_error(source: Path | str, reason: str) -> UserError:
    return UserError(
        f"{source} does not fit the model: {reason}; use the config that it was saved with"
    )


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write safetensors; raise `OSError` if the disk is full, as for every other file."""
    path.touch()
    mode = path.stat().st_mode  # by the umask; safetensors makes files for their owner only
    try:
        with temporary_folder(path) as folder:  # safetensors writes to a random name at first
            save_file({n: t.contiguous() for n, t in tensors.items()}, folder / path.name)
            (folder / path.name).chmod(mode)
            (folder / path.name).replace(path)
    except SafetensorError as error:
        message = str(error).removeprefix("Error while serializing: ")
        code = re.search(r"os error (\d+)", message)  # safetensors has it in the message only
        raise OSError(int(code[1]) if code else errno.EIO, message) from None


def make_stack(stack_class: type[Encoder] | type[Decoder], config: Config, **changes: Any) -> Any:
    """Build the stack that a config describes, with some arguments changed."""
    return stack_class(
        **{
            "dim": config.dim,
            "depth": config.depth,
            "heads": config.heads,
            "wiring": config.wiring,
            "norm": config.norm,
            "scale": config.scale,
            "positions": config.positions,
            "embed_norm": config.embed_norm,
            "embed_dim": config.embed_dim,
            "dropout": config.dropout,
            **config.layer_options,
            **changes,
        }
    )
