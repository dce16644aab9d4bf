"""Calls with the keyword inputs of Hugging Face models: `model(input_ids=..., labels=...)`.

`accept_keyword_inputs` decorates the `forward` of a model. A call without any of these keywords is
not changed. A call with one of them is translated to the model's own arguments, and returns a
`ModelOutput` with the loss, if there are labels, and the logits. Trainers of other libraries find
the keywords in the signature of `forward`.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.models.output import ModelOutput

NO_EFFECT_OPTIONS: dict[str, tuple[bool | None, ...]] = {
    "use_cache": (None, True, False),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
    "inputs_embeds": (None,),
}
"""Keywords that callers of transformers models pass, with the values that change nothing."""
LOSS_KEYWORDS = ("labels", "num_items_in_batch", "return_dict")
MASKS = {"attention_mask": "input_ids", "decoder_attention_mask": "decoder_input_ids"}
"""Tokens that a mask belongs to."""


def accept_keyword_inputs(**names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator of `forward` that accepts the keyword inputs of Hugging Face models.

    The decorated model needs a method `compute_loss(logits, labels, num_items)`.

    Args:
        **names: argument of `forward` for each keyword input, such as input_ids="ids"
    """
    keywords = {*names, *LOSS_KEYWORDS, *NO_EFFECT_OPTIONS}

    def decorate(forward: Callable[..., Any]) -> Callable[..., Any]:
        call = KeywordCall(forward, names)

        @wraps(forward)
        def translate(self: Any, *args: Any, **kwargs: Any) -> Any:
            if keywords.isdisjoint(kwargs):
                return forward(self, *args, **kwargs)
            return call.run(self, args, kwargs)

        parameters = list(inspect.signature(forward).parameters.values())
        keyword_only = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
            for name in (*names, *LOSS_KEYWORDS)
        ]
        rest = [each for each in parameters if each.kind is each.VAR_KEYWORD]
        first = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
        translate.__signature__ = inspect.Signature([*first, *keyword_only, *rest])  # type: ignore[attr-defined]
        return translate

    return decorate


class KeywordCall:
    """Translation of a call with keyword inputs to a call of a model's own `forward`.

    Args:
        forward: undecorated `forward` of a model
        names: argument of `forward` for each keyword input
    """

    def __init__(self, forward: Callable[..., Any], names: Mapping[str, str]) -> None:
        parameters = list(inspect.signature(forward).parameters.values())[1:]  # without self
        named = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
        self.forward, self.names = forward, names
        self.positional = [each.name for each in named]
        self.required = [each.name for each in named if each.default is each.empty]

    def run(
        self, model: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> ModelOutput | tuple[Any, ...]:
        """Run a model; return its outputs, and the loss if there are labels."""
        given = {name: value for name, value in kwargs.items() if value is not None}
        remove_no_effect_options(given)
        labels, num_items = given.pop("labels", None), given.pop("num_items_in_batch", None)
        return_dict = given.pop("return_dict", True)
        arguments = self._translate(model, args, given, labels)
        outputs = self.forward(model, *args, **arguments)
        loss = None if labels is None else model.compute_loss(outputs, labels, num_items)
        name = "last_hidden_state" if model.returns_hidden_states else "logits"
        output = ModelOutput({"loss": loss, name: outputs})
        return output if return_dict else output.to_tuple()

    def _translate(
        self, model: Any, args: tuple[Any, ...], given: dict[str, Any], labels: Tensor | None
    ) -> dict[str, Any]:
        """Return the keyword arguments of `forward`."""
        inputs, arguments = dict(zip(self.positional, args, strict=False)), {}
        for name, value in given.items():
            ours = self.names.get(name, name)
            if ours in inputs:
                raise UserError(
                    f"{name}: expected {ours} once, got it twice; leave one of them out"
                )
            inputs[ours] = arguments[ours] = value
        target = self.names.get("decoder_input_ids")
        if target and labels is not None and target not in inputs:
            made = model.prepare_decoder_input_ids_from_labels(labels)
            inputs[target] = arguments[target] = made
        for required in self.required:
            if required not in inputs:
                wanted = next(
                    (name for name in self.names if self.names[name] == required), required
                )
                raise UserError(f"{wanted}: expected a tensor for {type(model).__name__}, got none")
        for name, tokens in MASKS.items():
            if name in given:
                mask = to_bool_mask(name, given[name], inputs[self.names[tokens]])
                arguments[self.names[name]] = drop_full_mask(mask)
        if "position_ids" in given:
            ids = inputs[self.names["input_ids"]]
            arguments[self.names["position_ids"]] = expand_positions(given["position_ids"], ids)
        return arguments


def remove_no_effect_options(options: dict[str, Any]) -> None:
    """Remove options of transformers that change nothing; raise `UserError` for other values."""
    for name, accepted in NO_EFFECT_OPTIONS.items():
        value = options.pop(name, None)
        if value is not None and not any(value is each for each in accepted):
            got = "a tensor" if isinstance(value, Tensor) else repr(value)
            raise UserError(f"{name}: expected one of {accepted}, got {got}; leave it out")


def to_bool_mask(name: str, mask: Tensor | None, ids: Tensor | None) -> Tensor | None:
    """Convert a mask of 1 (valid) and 0 to a boolean mask; check its shape.

    Args:
        name: name of the argument, for error messages
        mask: (B, L) mask, or None
        ids: (B, L) tokens that the mask belongs to
    """
    if mask is None:
        return None
    if ids is None or mask.shape != ids.shape:
        raise UserError(
            f"{name}: expected the shape of its tokens, "
            f"{None if ids is None else tuple(ids.shape)}, got {tuple(mask.shape)}"
        )
    return mask.bool()


def drop_full_mask(mask: Tensor | None) -> Tensor | None:
    """Return None for a mask without padding, which allows faster kernels."""
    if mask is None or torch.compiler.is_compiling() or mask.is_meta:
        return mask
    return None if bool(mask.all()) else mask


def expand_positions(positions: Tensor, ids: Tensor) -> Tensor:
    """Return positions of shape (L), (1, L) or (B, L) in the shape of the tokens, (B, L)."""
    try:
        return positions.expand(ids.shape)
    except RuntimeError:
        raise UserError(
            f"position_ids: expected a shape that expands to that of input_ids, "
            f"{tuple(ids.shape)}, got {tuple(positions.shape)}"
        ) from None
