"""Base class of addnorm models in transformers."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from huggingface_hub import HfApi
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel

from addnorm.core.errors import UserError
from addnorm.interop.auto.config import REMOTE_MODULE, AddnormConfig
from addnorm.interop.auto.folder import write_extra_files
from addnorm.kernels.device_dtypes import default_device
from addnorm.models import Model, build
from addnorm.models.check_config import check_matches_config
from addnorm.models.keyword_inputs import remove_no_effect_options
from addnorm.models.training_interface import list_as_causal


class AddnormPreTrainedModel(PreTrainedModel):
    """Addnorm model with the interface of transformers; `model` is the addnorm model.

    Subclasses name the kind of model that they hold. `from_pretrained` raises `UserError` if a
    weight is missing: no weight is ever initialized while loading.
    """

    config_class = AddnormConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _supports_sdpa = True
    _keys_to_ignore_on_load_unexpected: ClassVar[list[str]] = [r"_extra_state$"]

    kind: ClassVar[str]
    """Kind of the addnorm model."""
    auto_class: ClassVar[str]
    """Name of the Auto class that loads it."""

    def __init__(self, config: AddnormConfig, model: Model | None = None) -> None:
        """Build the model of a config, or wrap an existing one.

        Args:
            config: config of transformers
            model: addnorm model of the same config; a new one is built if None
        """
        super().__init__(config)
        model_config = config.model_config
        if model_config.kind != self.kind:
            raise UserError(
                f"config: expected a model of kind {self.kind!r} for {type(self).__name__}, got "
                f"{model_config.kind!r}"
            )
        if model_config.classes is not None and config.num_labels != model_config.classes:
            raise UserError(
                f"num_labels: expected {model_config.classes}, the classes of the model, got "
                f"{config.num_labels}; build a model with another number of classes"
            )
        # from_pretrained constructs inside a context of the meta device.
        self.model: Any = build(model_config, device=default_device()) if model is None else model
        # The loss of a pair has no name in transformers; its labels are not shifted.
        self.loss_type = self.model.loss_type
        list_as_causal(self)
        self.post_init()

    @classmethod
    def from_pretrained(
        cls, *inputs: Any, output_loading_info: bool = False, **options: Any
    ) -> Any:
        """Load a model as transformers does; raise `UserError` if a weight is missing."""
        model, info = super().from_pretrained(*inputs, output_loading_info=True, **options)
        problems = sorted(str(each) for each in (*info["missing_keys"], *info["mismatched_keys"]))
        if problems:
            raise UserError(
                f"{inputs[0] if inputs else ''}: expected all weights of {cls.__name__}, got none "
                f"of this name and shape: {', '.join(problems[:3])}"
            )
        return (model, info) if output_loading_info else model

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> None:
        """Save config, weights, generation config, a loader for remote code and a model card.

        An existing model card is kept.

        Args:
            save_directory: output folder
            **options: those of transformers

        Raises:
            UserError: parts of the model were replaced, so that its config does not describe it
        """
        repo_id = options.pop("repo_id", None) or Path(save_directory).name
        push = options.pop("push_to_hub", False)
        if options.get("state_dict") is None:
            check_matches_config(self.model)
        self.config.auto_map = make_auto_map(type(self))
        super().save_pretrained(save_directory, **options)
        if options.get("is_main_process", True):
            write_extra_files(
                self.model,
                Path(save_directory),
                class_name=type(self).__name__,
                auto_class=self.auto_class,
            )
            if push:
                upload_folder(save_directory, repo_id, token=options.get("token"))

    def push_to_hub(self, repo_id: str, **options: Any) -> Any:
        """Upload the folder of `save_pretrained`, with its model card, to the Hub.

        The method of transformers would replace the card by a template.

        Args:
            repo_id: name of the repository, which is created if it does not exist
            **options: token, private, commit_message, revision and create_pr as in transformers,
                and options of `save_pretrained`
        """
        names = (
            "token",
            "private",
            "commit_message",
            "commit_description",
            "revision",
            "create_pr",
        )
        upload = {name: options.pop(name) for name in names if name in options}
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder, **options)
            return upload_folder(folder, repo_id, **upload)

    def _init_weights(self, module: nn.Module) -> None:
        """Do nothing: `build` initializes the weights as the wiring prescribes."""

    def get_input_embeddings(self) -> nn.Module:
        """Return the module that embeds tokens or images."""
        return self.model.get_input_embeddings()

    def get_output_embeddings(self) -> None:
        """Return None: the output projection shares the embedding, or is no `nn.Linear`."""
        return None

    def resize_token_embeddings(self, *inputs: Any, **options: Any) -> nn.Module:
        """Return the embedding of the input; raise `UserError` if its size would change."""
        size = inputs[0] if inputs else options.get("new_num_tokens")
        if size is None or size == self.config.vocab_size:
            return self.get_input_embeddings()
        raise UserError(
            f"new_num_tokens: expected {self.config.vocab_size}, the vocabulary that the model was "
            f"built with, got {size}; build a model with another vocab"
        )

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None, **options: Any
    ) -> None:
        """Recompute activations of sub-layers in the backward instead of saving them."""
        self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs, **options)

    def gradient_checkpointing_disable(self) -> None:
        """Save activations, as by default."""
        self.model.gradient_checkpointing_disable()

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether activations are recomputed in the backward."""
        return self.model.is_gradient_checkpointing

    def _check_options(self, options: dict[str, Any]) -> None:
        """Raise `UserError` for keywords that would have an effect and are not supported."""
        given = {name: value for name, value in options.items() if value is not None}
        remove_no_effect_options(given)
        for name in given.keys() - {"return_dict", "num_items_in_batch", "cache_position"}:
            raise UserError(f"{name}: expected no such input for {type(self).__name__}")

    def _compute_loss(
        self, logits: Tensor, labels: Tensor | None, options: dict[str, Any]
    ) -> Tensor | None:
        if labels is None:
            return None
        if self.config.problem_type in ("regression", "multi_label_classification"):
            labels = labels.to(logits.dtype)
        return self.model.compute_loss(logits, labels, options.get("num_items_in_batch"))

    def _format_output(self, output: Any, options: dict[str, Any]) -> Any:
        """Return an output as an object or, with `return_dict=False`, as a tuple."""
        return_dict = options.get("return_dict")
        return_dict = self.config.return_dict if return_dict is None else return_dict
        return output if return_dict else output.to_tuple()


class AddnormGenerativeModel(AddnormPreTrainedModel, GenerationMixin):
    """Model with `generate`.

    The default generation config never generates padding, start and unknown tokens, as
    `addnorm.decode` does. Set `generation_config.suppress_tokens` to None to allow them.
    """

    def __init__(self, config: AddnormConfig, model: Model | None = None) -> None:
        super().__init__(config, model)
        self.generation_config.suppress_tokens = self.special_tokens_to_suppress(config)

    @staticmethod
    def special_tokens_to_suppress(config: AddnormConfig) -> list[int] | None:
        """Return the special tokens of addnorm's tokenizers except the end token."""
        ends = (
            config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
        )
        size = config.vocab_size or 0
        return [token for token in range(min(4, size)) if token not in ends] or None

    def _should_use_cache(self, use_cache: bool | None, labels: Any, past: Any) -> bool:
        if use_cache is None:
            use_cache = self.config.use_cache and labels is None and not self.training
        return bool(use_cache) or past is not None


def upload_folder(
    folder: str | Path,
    repo_id: str,
    *,
    token: Any = None,
    private: bool | None = None,
    **options: Any,
) -> Any:
    """Upload a saved folder to the Hub; options as of `HfApi.upload_folder`."""
    api = HfApi(token=token)
    repo = api.create_repo(repo_id, private=private, exist_ok=True)
    return api.upload_folder(repo_id=repo.repo_id, folder_path=folder, **options)


def make_auto_map(model_class: type[AddnormPreTrainedModel]) -> dict[str, str]:
    """Return the entry `auto_map` of `config.json`, which remote code loading reads."""
    return {
        "AutoConfig": f"{REMOTE_MODULE}.AddnormConfig",
        model_class.auto_class: f"{REMOTE_MODULE}.{model_class.__name__}",
    }
