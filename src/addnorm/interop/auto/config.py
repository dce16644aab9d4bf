"""Config of addnorm models in transformers."""

from typing import Any, ClassVar

from transformers import PretrainedConfig

from addnorm.core.errors import UserError
from addnorm.models import Config

REMOTE_MODULE = "modeling_addnorm"
"""Module of a saved folder that imports the classes, for `trust_remote_code=True`."""


class AddnormConfig(PretrainedConfig):
    """Config of an addnorm model, as `config.json` of a Hugging Face folder stores it.

    The key `model` has the fields of `addnorm.Config` that differ from their defaults; all others
    are those of transformers. Special tokens are those of addnorm's tokenizers unless given.

    >>> config = AddnormConfig(dict(kind="lm", vocab=50, dim=16, depth=2, heads=2, wiring="b2t"))
    >>> config.model_config.wiring, config.hidden_size, config.is_encoder_decoder
    ('b2t', 16, False)
    """

    model_type = "addnorm"
    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        "past_key_values",
        "encoder_last_hidden_state",
    ]

    def __init__(self, model: dict[str, Any] | Config | None = None, **options: Any) -> None:
        config = model if isinstance(model, Config) else Config.from_dict(model) if model else None
        self.model = {} if config is None else config.to_dict()
        if config is not None:
            for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
                options.setdefault(name, getattr(config, name))
            options["is_encoder_decoder"] = config.is_encoder_decoder
            if config.classes is not None and "id2label" not in options:
                options["num_labels"] = config.classes
        # transformers drops settings of generation from the options.
        start = options.pop(
            "decoder_start_token_id", getattr(config, "decoder_start_token_id", None)
        )
        self.use_cache = options.pop("use_cache", True)
        # The model ties its output projection itself.
        options["tie_word_embeddings"] = False
        super().__init__(**options)
        if self.is_encoder_decoder:
            self.decoder_start_token_id = start

    @property
    def model_config(self) -> Config:
        """Fields of the key `model`, with defaults and validated."""
        if not self.model:
            raise UserError(
                "config: expected the fields of an addnorm model under the key model, got none"
            )
        return Config.from_dict(self.model)

    @property
    def vocab_size(self) -> int | None:
        """Number of tokens."""
        return self.model.get("vocab")

    @property
    def hidden_size(self) -> int | None:
        """Width of the residual stream."""
        return self.model.get("dim")

    @property
    def num_hidden_layers(self) -> int | None:
        """Number of layers; of the decoder in a seq2seq model."""
        return self.model.get("depth")

    @property
    def num_attention_heads(self) -> int | None:
        """Number of query heads."""
        return self.model.get("heads")

    @property
    def num_key_value_heads(self) -> int | None:
        """Number of heads of keys and values; that of queries unless given."""
        return self.model.get("kv_heads") or self.num_attention_heads
