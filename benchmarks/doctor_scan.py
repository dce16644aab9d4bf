"""Findings of the doctor on every family of transformers, with tiny configs and random weights.

Nothing is downloaded. Families that a shrunken default config does not build, or whose inputs
cannot be guessed, are counted apart. `--part 2/8` examines every eighth family from the second on:

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/doctor_scan.py --part 1/8
"""

import argparse
import json
import signal
import warnings

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import addnorm
from addnorm.doctor.loading.example_inputs import guess_inputs
from addnorm.doctor.loading.hugging_face import build_from_config, count_weights, set_layers

LIMIT_SECONDS, MAX_WEIGHTS = 60, 40_000_000
SIZES = {
    32: ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_size", "emb_dim",
         "encoder_hidden_dim", "encoder_embed_dim", "projection_dim", "hidden_dim"),
    64: ("intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim",
         "moe_intermediate_size", "max_position_embeddings", "n_positions", "mlp_dim",
         "shared_expert_intermediate_size"),
    4: ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
        "decoder_attention_heads", "num_experts", "num_local_experts", "n_routed_experts"),
    2: ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers",
        "decoder_layers", "num_decoder_layers", "num_key_value_heads", "num_experts_per_tok"),
    8: ("head_dim", "d_kv"),
    99: ("vocab_size",),
}  # fmt: skip
VALUES = {name: value for value, names in SIZES.items() for name in names}


def shrink(config):
    """Set the sizes of a config and of the configs inside it to small numbers."""
    for name, value in list(vars(config).items()):
        if isinstance(value, transformers.PretrainedConfig):
            shrink(value)
        elif isinstance(value, int) and value > VALUES.get(name.lstrip("_"), value):
            setattr(config, name, VALUES[name])
        elif name.endswith("_token_id") and isinstance(value, int) and value >= 99:
            setattr(config, name, 1)
    set_layers(config, 2)
    return config


def examine(family):
    """Return the number of residual adds and the findings of one family."""
    torch.manual_seed(0)
    config = shrink(CONFIG_MAPPING[family]())
    if count_weights(config) is None:  # the small sizes do not fit together
        set_layers(config := CONFIG_MAPPING[family](), 2)
    if (count_weights(config) or MAX_WEIGHTS + 1) > MAX_WEIGHTS:
        raise ValueError("cannot be made small")
    model = build_from_config(config)
    report = addnorm.doctor(model, guess_inputs(model))
    return len(report.blocks), [[f.rule, f.severity, f.path] for f in report.findings]


def stop(*_):
    raise TimeoutError(f"over {LIMIT_SECONDS} seconds")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="1/1")
    parser.add_argument("families", nargs="*")
    options = parser.parse_args()
    number, count = map(int, options.part.split("/"))
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, stop)
    examined = alarms = 0
    for family in options.families or sorted(CONFIG_MAPPING)[number - 1 :: count]:
        signal.alarm(LIMIT_SECONDS)
        try:
            blocks, findings = examine(family)
        except Exception as problem:
            print(json.dumps([family, f"{type(problem).__name__}: {problem}"[:160]]), flush=True)
            continue
        finally:
            signal.alarm(0)
        examined += blocks > 0
        alarms += any(severity != "info" for _, severity, _ in findings)
        print(json.dumps([family, blocks, findings]), flush=True)
    print(f"{examined} families with residual adds, {alarms} with findings above info")


if __name__ == "__main__":
    main()
