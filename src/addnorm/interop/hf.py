"""Conversion of Hugging Face models: `from_hf`, `load_hf` and `convert_config`.

`from_hf` works in four steps, and raises `UserError` if any of them fails, so that a model is
converted exactly or not at all:

1. `_read_config` checks the class and wraps the config in a `ConfigReader`;
2. the family's reader maps every field of the config to a `Config` (`build_config`);
3. `WeightMapper` maps every tensor of the state dict to tensors of our model;
4. `verify_copy` runs both models on a small input and compares the outputs.

In this package, "theirs" always means a model, config or tensor name of transformers, and "ours"
one of addnorm.
"""

import copy
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.interop.config_reader import REWIRED_FIELD, ConfigReader
from addnorm.interop.families import (
    encoders,  # noqa: F401 registers its families
    fairseq,  # noqa: F401 registers its families
    fused_qkv,  # noqa: F401 registers its families
    gated_decoders,  # noqa: F401 registers its families
    gpt,  # noqa: F401 registers its families
    gpt_oss,  # noqa: F401 registers its families
    llama,  # noqa: F401 registers its families
    mixtures,  # noqa: F401 registers its families
    modernbert,  # noqa: F401 registers its families
    seq2seq,  # noqa: F401 registers its families
    vision,  # noqa: F401 registers its families
    whisper,  # noqa: F401 registers its families
)
from addnorm.interop.family import Family, HeadVariant, find_family
from addnorm.interop.hf_model import HFModel, HFOrigin
from addnorm.interop.transformers_compat import transformers_library
from addnorm.interop.verify import verify_copy
from addnorm.interop.weight_mapping import WeightMapper
from addnorm.models import Config, build


def from_hf(hf_model: Any) -> HFModel:
    """Convert a Hugging Face model to an addnorm model with a copy of its weights.

    The result takes the keyword inputs of the original class and returns the same outputs
    (`logits`, `last_hidden_state`, ...). Its attribute `model` is an addnorm model that can be
    trained, measured and saved. Nothing is downloaded.

    Args:
        hf_model: model of a supported class of transformers, with weights

    Raises:
        UserError: if the family, a setting or a tensor is not supported, or if the outputs of the
            copy differ from those of the original
    """
    reader, family, variant = _read_config(hf_model)
    theirs = reader.tensors
    if any(value.is_meta for value in theirs.values()):
        raise UserError(f"expected a model with weights, got {reader.name} on the meta device")
    config = build_config(family, variant, reader)
    model = build(config, device="meta")
    mapper = WeightMapper(family, variant, f"{hf_model.base_model_prefix}.", model)
    pairs = mapper.match_tensors(theirs)
    model.load_state_dict(mapper.to_ours(pairs, theirs), assign=True, strict=False)
    frozen = mapper.freeze_absent(pairs)
    if frozen:
        reader.notes.append(f"biases that the class lacks stay 0: {', '.join(frozen[:3])}")
    origin = HFOrigin(
        model_class=type(hf_model),
        config=copy.deepcopy(hf_model.config),
        model_config=config,
        generation_config=copy.deepcopy(getattr(hf_model, "generation_config", None)),
        pairs=tuple(pairs),
        unused_tensors={
            pair.theirs: theirs[pair.theirs].detach().clone()
            for pair in pairs
            if pair.constant is not None and pair.constant.value == "unused"
        },
    )
    numbering = family.get_numbering(reader.values)
    converted = HFModel(model, variant, numbering, origin, reader.notes)
    verify_copy(hf_model, converted)
    return converted.train(hf_model.training)


def load_hf(folder: str | Path) -> HFModel:
    """Load a folder of a Hugging Face model, such as `HFModel.save` writes; nothing is downloaded.

    Raises:
        UserError: there is no such folder, weights are missing, or as `from_hf`
    """
    transformers, path = transformers_library(), Path(folder)
    if not (path / "config.json").is_file():
        raise UserError(f"folder: expected one with a config.json, got {path}")
    config = transformers.AutoConfig.from_pretrained(path)
    names = config.architectures or ()
    model_class = next((getattr(transformers, name, None) for name in names), None)
    if model_class is None:
        raise UserError(f"{path}: expected a class of transformers in config.json, got {names!r}")
    for options in ({}, {"add_pooling_layer": False}):  # the config does not tell about a pooler
        try:
            hf_model, info = model_class.from_pretrained(
                path, config=config, output_loading_info=True, **options
            )
        except TypeError:
            if options:
                break  # a class without a pooler
            raise
        if not info["missing_keys"] and not info["mismatched_keys"]:
            return from_hf(hf_model)
    raise UserError(
        f"{path}: expected all weights of {model_class.__name__}, got none of this name and shape: "
        f"{', '.join(map(str, sorted(info['missing_keys'])[:3]))}"
    )


def convert_config(hf_model: Any) -> Config:
    """Return the addnorm config of a Hugging Face model, which may be on the meta device."""
    reader, family, variant = _read_config(hf_model)
    return build_config(family, variant, reader)


def _read_config(hf_model: Any) -> tuple[ConfigReader, Family, HeadVariant]:
    transformers = transformers_library()
    if not isinstance(hf_model, transformers.PreTrainedModel):
        raise UserError(
            f"hf_model: expected a model of transformers, got {type(hf_model).__name__}; build it "
            "from a config or load it with from_pretrained first"
        )
    name, config = type(hf_model).__name__, hf_model.config
    if config.model_type == Config.model_type:
        raise UserError(f"hf_model: expected a stock class, got {name}; use its attribute model")
    if not type(hf_model).__module__.startswith("transformers."):
        raise UserError(
            f"hf_model: expected a class of transformers, got {name} of "
            f"{type(hf_model).__module__}, whose forward may differ"
        )
    rewired = getattr(config, REWIRED_FIELD, None)
    if rewired is not None:
        raise UserError(
            f"hf_model: expected weights of {name}, got ones for the norms {rewired}, which "
            "addnorm.rewire gave it; load them into a model that was rewired the same way"
        )
    family, variant = find_family(config.model_type, name)
    declared = type(config)().to_dict()
    reader = ConfigReader(name, config.to_dict(), dict(hf_model.state_dict()), declared)
    return reader, family, variant


def build_config(family: Family, variant: HeadVariant, reader: ConfigReader) -> Config:
    """Return our config of a config of transformers; raise `UserError` for unsupported fields."""
    try:
        values: dict[str, Any] = {"kind": variant.kind} | family.read(reader) | variant.read(reader)
    except (TypeError, AttributeError):
        # Caused by a missing field or one of another type, which the reader has recorded.
        reader.finish(all_read=False)
        raise
    reader.finish()
    return Config(**values)
