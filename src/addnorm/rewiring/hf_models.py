"""Rewired models of Hugging Face families, and their way back to transformers."""

import copy
from typing import Any

import torch

from addnorm.core.errors import UserError
from addnorm.interop import HFModel, to_hf
from addnorm.interop.stock import to_stock
from addnorm.interop.stock.widen import StockMismatchError
from addnorm.interop.verify import make_example_inputs
from addnorm.models.check_config import check_matches_config
from addnorm.rewiring.losses import evaluation

TOLERANCE = 1e-4
"""Largest difference of outputs in the precision of the model, relative to the largest one."""


class RewiredHFModel(HFModel):
    """Converted Hugging Face model with another arrangement than its original.

    It takes the keyword inputs of the original class. `to_hf` and `save` write the stock class that
    computes the same, if there is one, and the registered addnorm class otherwise.
    """

    @classmethod
    def from_model(cls, model: HFModel) -> "RewiredHFModel":
        """Return the same model as one of this class."""
        result = cls(model.model, model.variant, model.numbering, model.origin, model.notes)
        result.training = model.training
        return result

    def to_hf(self) -> Any:
        """Return a model of transformers with a copy of the current weights.

        The class of the original is tried first, then the other stock classes, then the addnorm
        class of the kind. Its outputs are compared with those of this model.

        Raises:
            UserError: no class computes the same
        """
        check_matches_config(self.model)
        result = self._to_stock_class()
        if result is None:
            result = to_hf(copy.deepcopy(self.model), **self._special_tokens(), **self._labels())
            if self.origin.generation_config is not None:
                result.generation_config = copy.deepcopy(self.origin.generation_config)
        self._check_outputs(result)
        return result.train(self.training)

    def _to_stock_class(self) -> Any:
        """Return a model of a stock class, or None."""
        origin = self.origin
        end = getattr(origin.config, "eos_token_id", None)
        options: dict[str, Any] = {"labels": [*self._labels().get("id2label", {}).values()]}
        if isinstance(end, int):
            options["end"] = end
        if self.config.image is not None:
            return None
        for name in (origin.config.model_type, None):
            try:
                stock = to_stock(copy.deepcopy(self.model).eval(), name=name, **options)
            except (StockMismatchError, UserError):
                continue
            hf_model = stock.hf_model
            if origin.generation_config is not None:
                hf_model.generation_config = copy.deepcopy(origin.generation_config)
            for key, value in self._special_tokens().items():
                setattr(hf_model.config, key, value)
            return hf_model
        return None

    def _labels(self) -> dict[str, Any]:
        """Return the names of the classes, as fields of a config of transformers."""
        names = getattr(self.origin.config, "id2label", None)
        if not names or not self.config.classes:
            return {}
        return {"id2label": dict(names), "label2id": {name: i for i, name in names.items()}}

    def _special_tokens(self) -> dict[str, Any]:
        names = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
        values = {name: getattr(self.origin.config, name, None) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    @torch.no_grad()
    def _check_outputs(self, result: Any) -> None:
        inputs = make_example_inputs(self.config, next(iter(self.parameters())))
        with evaluation(self, result):
            ours, theirs = self(**inputs), result(**inputs)
        name = "logits" if ours.get("logits") is not None else "last_hidden_state"
        expected, got = ours[name].double(), getattr(theirs, name).double()
        difference = float((expected - got).abs().max())
        if not difference <= TOLERANCE * max(float(expected.abs().max()), 1e-30):
            raise UserError(
                f"to_hf: expected {type(result).__name__} to compute the same, got {name} that "
                f"differ by {difference:.2g}; use model.model.save(folder)"
            )
