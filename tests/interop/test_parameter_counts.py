"""Parameter counts at real size, on the meta device."""

import pytest
import torch
import transformers

from addnorm.interop import FAMILIES, convert_config
from addnorm.models import PRESETS, build

SCRIPTED = "ignore:.torch.jit.script. is deprecated:DeprecationWarning"  # of gpt_bigcode
pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings(SCRIPTED)]

BART = {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12}
BART |= {"decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072}
MARIAN = {"d_model": 512, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8}
MARIAN |= {"decoder_attention_heads": 8, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
MARIAN |= {"scale_embedding": True, "activation_function": "swish", "vocab_size": 58101}
MARIAN |= {"decoder_vocab_size": 58101, "pad_token_id": 58100, "max_position_embeddings": 512}
OLMO2 = {"vocab_size": 100352, "rms_norm_eps": 1e-6}
OLMO2 |= {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}

ROWS = [
    ("bert", "BertModel", "BertConfig", {}),
    ("gpt1", "OpenAIGPTLMHeadModel", "OpenAIGPTConfig", {}),
    ("gpt2", "GPT2LMHeadModel", "GPT2Config", {}),
    ("t5", "T5ForConditionalGeneration", "T5Config", {}),
    ("bart", "BartForConditionalGeneration", "BartConfig", BART),
    ("marian", "MarianMTModel", "MarianConfig", MARIAN),
    ("llama", "LlamaForCausalLM", "LlamaConfig", {}),
    ("gemma2", "Gemma2ForCausalLM", "Gemma2Config", {}),
    ("olmo2", "Olmo2ForCausalLM", "Olmo2Config", OLMO2),
    ("gptj", "GPTJForCausalLM", "GPTJConfig", {}),
    ("vit", "ViTForImageClassification", "ViTConfig", {"num_labels": 1000}),
]


def build_on_meta(name, config, values):
    with torch.device("meta"):
        return getattr(transformers, name)(getattr(transformers, config)(**values))


def count(model, without=()):
    """Count trainable parameters, without fixed tables of sinusoids and the parts `without`."""
    return sum(
        weight.numel()
        for name, weight in model.named_parameters()
        if weight.requires_grad and not any(part in name for part in without)
    )


@pytest.mark.parametrize(("name", "model", "config", "values"), ROWS, ids=lambda v: str(v)[:20])
def test_presets_match_transformers(name, model, config, values):
    theirs = build_on_meta(model, config, values)
    assert count(build(name, device="meta")) == count(theirs) == PRESETS[name].parameters
    ours = convert_config(theirs)
    assert count(build(ours, device="meta")) == count(theirs)
    assert normalize(ours) == normalize(PRESETS[name].config)


def normalize(config):
    """Return the values of a config with defaults resolved and redundant options removed."""
    values = config.model_dump()
    heads, bias = values["heads"], values["bias"]
    defaults = {"kv_heads": heads, "encoder_depth": values["depth"], "out_bias": bias}
    defaults |= {"ffn_bias": bias, "ffn_dim": 4 * values["dim"]}
    for key, value in defaults.items():
        values[key] = value if values[key] is None else values[key]
    for key in ("norm", "qk_norm", "positions"):
        for default in ("eps=1e-05", "eps=1e-06", "buckets=32, distance=128"):
            values[key] = values[key].replace(default, "").replace("(, ", "(").replace("()", "")
    return values


# Changes to default configs that are not supported as they are.
SUPPORTED_SETTINGS = {
    "smollm3": {"no_rope_layers": [1] * 36},
    "exaone4": {"sliding_window": None, "layer_types": ["full_attention"] * 32},
    "ministral": {"head_dim": 128},  # transformers cannot build it without
    "nemotron": {"num_key_value_heads": 48},  # likewise
    "qwen3_next": {"layer_types": ["full_attention"] * 48, "mlp_only_layers": list(range(48))},
}


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_class_at_default_size(family):
    config = transformers.CONFIG_MAPPING[family]
    for name in FAMILIES[family].variants:
        theirs = build_on_meta(name, config.__name__, SUPPORTED_SETTINGS.get(family, {}))
        absent = (*FAMILIES[family].absent, *FAMILIES[family].variants[name].absent)
        ours = count(build(convert_config(theirs), device="meta"), absent)
        assert ours == count(theirs, ("encoder_attn",) if family == "whisper" else ()), name
