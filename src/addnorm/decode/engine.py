"""Exported models, which an inference engine such as ONNX Runtime runs in place of PyTorch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from addnorm.decode.greedy import Hypothesis
from addnorm.decode.options import DecodingOptions
from addnorm.decode.stepper import Sentence
from addnorm.kernels.cross_entropy import LossSums, cross_entropy
from addnorm.models import Model


class InferenceEngine(ABC):
    """Exported model with the part of the interface of `Model` that inference uses.

    Attributes:
        device: where inputs are expected and outputs are returned
        training: always False
        max_source_length: most tokens of a source; None if any number works
        max_target_length: most tokens of a target or text; None if any number works
    """

    device = torch.device("cpu")
    training = False
    max_source_length: int | None = None
    max_target_length: int | None = None

    @abstractmethod
    def __call__(self, *inputs: Tensor, **options: Tensor | None) -> Tensor:
        """Return the logits that the model itself returns for these arguments of `forward`."""

    @abstractmethod
    def decode_batch(
        self, sentences: Sequence[Sentence], options: DecodingOptions, end: int
    ) -> list[list[Hypothesis]]:
        """Decode one batch of sentences; see `addnorm.decode.decode`."""

    def loss(
        self, targets: Tensor, *inputs: Tensor, smoothing: float = 0.0, **options: Tensor | None
    ) -> LossSums:
        """Return the cross entropy of the logits; see `Model.loss`."""
        return cross_entropy(self(*inputs, **options), targets, smoothing=smoothing)


def length_limits(model: Model | InferenceEngine) -> tuple[int | None, int | None]:
    """Return the most tokens of a source and of a target or text; None where any number works."""
    if isinstance(model, InferenceEngine):
        return model.max_source_length, model.max_target_length
    first, *_ = limits = [stack.positions.max_length for stack in model.stacks]
    return first, limits[-1]


def model_device(model: Model | InferenceEngine) -> torch.device:
    """Return the device where a model expects its inputs."""
    return model.device if isinstance(model, InferenceEngine) else next(model.parameters()).device
