"""Output of a model that is called with the keyword inputs of Hugging Face models."""

from typing import Any

from torch import Tensor
from torch.utils._pytree import register_pytree_node

FIELDS = ("loss", "logits", "last_hidden_state", "pooler_output", "encoder_last_hidden_state")


class ModelOutput(dict[Any, Any]):
    """Outputs by name, as transformers returns them: a dictionary with attributes.

    It can be indexed by name or number. An output that the model does not have is missing in the
    dictionary, and None as an attribute:

        loss: scalar, mean over the labels; only if labels were passed
        logits: (B, L, vocab) or (B, classes)
        last_hidden_state: (B, L, dim)
        pooler_output: (B, dim)
        encoder_last_hidden_state: (B, S, dim)

    >>> output = ModelOutput(loss=None, logits=Tensor([1.0]))
    >>> output.loss, output["logits"] is output.logits is output[0]
    (None, True)
    """

    def __init__(self, *items: Any, **outputs: Any) -> None:
        super().__init__(*items, **outputs)
        for name in [name for name, value in self.items() if value is None]:
            del self[name]

    def __getattr__(self, name: str) -> Tensor | None:
        if name in self:
            value: Tensor = self[name]
            return value
        if name in FIELDS:
            return None
        raise AttributeError(f"output: expected one of {', '.join(FIELDS)}, got {name!r}")

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the outputs without their names."""
        return tuple(self.values())


# DistributedDataParallel and torch.export look for tensors in registered containers only.
register_pytree_node(
    ModelOutput,
    lambda output: (list(output.values()), list(output)),
    lambda values, names: ModelOutput(zip(names, values, strict=True)),
)
