"""Names, shapes and dtypes of weights in state_dicts, and names of torch operators."""

from typing import Any

import torch
from torch import nn

from addnorm.kernels.add_norm import autograd  # noqa: F401  (registers operators)
from addnorm.kernels.attention import native  # noqa: F401  (registers operators)
from addnorm.models.build import MODELS, build
from addnorm.models.presets import PRESETS
from addnorm.models.tabular import MODELS as TABLE_MODELS
from addnorm.models.tabular import TableConfig, build_table_model
from addnorm.models.tabular.numeric_embeddings import make_numeric_embedding
from addnorm.models.tabular.numeric_embeddings import registry as numeric_embeddings
from addnorm.norms.base import make_norm
from addnorm.norms.base import registry as norms
from addnorm.stacks import Decoder, Encoder
from addnorm.stacks.arrangement import decode_text
from addnorm.sublayers.positions import make_positions
from addnorm.sublayers.positions import registry as positions
from addnorm.sublayers.qk_norm import registry as qk_norms
from addnorm.wirings.base import registry as wirings
from tools.pinned.digests import list_patterns, summarize_state_dict


def pin_stack_weights() -> Any:
    """Return names and shapes of the weights of every wiring's encoders and decoders."""
    stacks: dict[str, tuple[type[Encoder] | type[Decoder], dict[str, int]]] = {
        "encoder alone": (Encoder, {}),
        "encoder of a pair": (Encoder, {"other_depth": 4}),
        "decoder alone": (Decoder, {}),
        "decoder of a pair": (Decoder, {"other_depth": 4}),
    }
    pins: dict[str, Any] = {}
    outside: set[str] = set()
    for wiring in wirings:
        own: set[str] = set()
        pins[wiring] = {}
        for label, (kind, options) in stacks.items():
            stack = kind(dim=8, depth=4, heads=2, wiring=wiring, **options)
            patterns = list_patterns(stack.state_dict())
            own.update(name for name in patterns if name.startswith("wiring."))
            outside.update(name for name in patterns if not name.startswith("wiring."))
            pins[wiring][label] = summarize_state_dict(stack)
            pins[wiring]["extra state"] = decode_text(stack.get_extra_state())
        pins[wiring]["patterns"] = sorted(own)
    return {"wirings": pins, "patterns outside of wirings": sorted(outside)}


def pin_layer_weights() -> Any:
    """Return names and shapes of the weights of norms, positions and the options of layers."""
    modules: dict[str, nn.Module] = {}
    modules |= {f"norm {name}": make_norm(name, 8) for name in norms}
    modules |= {f"position {name}": make_positions(name, dim=8, heads=2) for name in positions}
    modules |= {
        f"numeric {name}": make_numeric_embedding(name, 3, 8) for name in numeric_embeddings
    }
    options: dict[str, dict[str, Any]] = {f"qk_norm {name}": {"qk_norm": name} for name in qk_norms}
    options |= {f"activation {name}": {"activation": name} for name in ("relu", "gelu", "swiglu")}
    options |= {
        "no bias": {"bias": False},
        "kv_heads": {"kv_heads": 1},
        "embed_norm": {"embed_norm": "layer"},
    }
    modules |= {name: Decoder(dim=8, depth=1, heads=2, **each) for name, each in options.items()}
    return {
        name: {
            "summary": summarize_state_dict(module),
            "patterns": [key for key in list_patterns(module.state_dict()) if "_proj." not in key],
        }
        for name, module in modules.items()
    }


def pin_model_weights() -> Any:
    """Return names and shapes of the weights of each kind of model and each preset, made small."""
    sizes: dict[str, Any] = {"vocab": 16, "dim": 8, "depth": 2, "heads": 2}
    models = {
        f"kind {kind}": build(
            kind=kind, **sizes, **({"classes": 3} if kind == "classifier" else {}), device="meta"
        )
        for kind in MODELS
    }
    models |= {f"preset {name}": build(PRESETS[name].tiny, device="meta") for name in PRESETS}
    keys = (key for model in models.values() for key in model.state_dict())
    return {
        "models": {name: summarize_state_dict(model) for name, model in models.items()},
        "patterns": list_patterns(keys),
    }


def pin_table_model_weights() -> Any:
    """Return names and shapes of the weights of every table model."""
    columns: dict[str, Any] = {"numbers": 3, "categories": (4, 5), "texts": (6,), "outputs": 2}
    sizes: dict[str, Any] = {"dim": 8, "depth": 2, "heads": 2}
    pins = {}
    for name, kind in TABLE_MODELS.items():
        config = TableConfig(model=name, **kind.defaults | sizes | columns)
        model = build_table_model(config, seed=0)
        pins[name] = {
            "defaults": kind.defaults,
            "summary": summarize_state_dict(model),
            "patterns": list_patterns(model.state_dict()),
        }
    return pins


def pin_operators() -> Any:
    """Return the names of the torch operators of this package."""
    names = torch._C._dispatch_get_all_op_names()
    return sorted(name for name in names if name.startswith("addnorm::"))
