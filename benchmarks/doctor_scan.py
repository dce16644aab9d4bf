"""Findings of the doctor on every family of transformers, with tiny configs and random weights.

Nothing is downloaded. Families that a shrunken default config does not build, or whose inputs
cannot be guessed, are counted apart. `--part 2/8` examines every eighth family from the second on:

    OMP_NUM_THREADS=1 PYTHONPATH=src python benchmarks/doctor_scan.py --part 1/8

Each family runs in a process of its own with limits of memory and time: guessed inputs may be read
as sizes (the image grids of Qwen-VL), and the kernel would kill the scan instead of the family.
"""

import argparse
import collections
import json
import multiprocessing
import resource
import signal
import warnings

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

import addnorm
from addnorm.doctor.loading.example_inputs import guess_inputs
from addnorm.doctor.loading.hugging_face import build_from_config, count_weights, set_layers

MAX_CPU_SECONDS, MAX_WALL_SECONDS, MAX_BYTES, MAX_WEIGHTS = 60, 600, 6 * 2**30, 40_000_000
MAX_BUILDS = 2
"""Models of a family that are tried if their inputs cannot be guessed."""
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
    8: ("head_dim", "d_kv", "rotary_dim"),
    99: ("vocab_size",),
}  # fmt: skip
KINDS = ("with residual adds", "without residual adds", "not examined")


def shrink(config, sizes):
    """Set the sizes of a config and of the configs inside it to small numbers."""
    for name, value in list(vars(config).items()):
        small = sizes.get(name.lstrip("_"))
        if isinstance(value, transformers.PretrainedConfig):
            shrink(value, sizes)
        elif type(value) is int and small is not None and value > small:
            setattr(config, name, small)
        elif name.endswith("_token_id") and isinstance(value, int) and value >= 99:
            setattr(config, name, 1)
    set_layers(config, 2)
    return config


def build_small(family, kept):
    """Build a model with small sizes, except for those of the group `kept`."""
    sizes = {name: n for n, names in SIZES.items() if n != kept for name in names}
    config = shrink(CONFIG_MAPPING[family](), sizes if kept != "all" else {})
    if (count_weights(config) or 0) > MAX_WEIGHTS:
        raise ValueError("cannot be made small")
    torch.manual_seed(0)
    return build_from_config(config)


def examine(family):
    """Return the number of residual adds and the findings of one family."""
    if not {CONFIG_MAPPING[family]} & {*MODEL_MAPPING, *MODEL_FOR_CAUSAL_LM_MAPPING}:
        raise ValueError("part of another family, without an Auto class")
    problem, builds = None, 0
    for kept in (None, *SIZES, "all"):  # not all small sizes fit together
        try:
            model = build_small(family, kept)
            builds += 1
            inputs = guess_inputs(model)
        except Exception as error:
            problem = error
            if builds == MAX_BUILDS:
                break
            continue
        report = addnorm.doctor(model, inputs)
        return len(report.blocks), [[f.rule, f.severity, f.path] for f in report.findings]
    raise problem


def examine_and_send(family, pipe):
    """Send the result of a family, or its error message; the limits end this process only."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    try:
        pipe.send(examine(family))
    except Exception as problem:
        pipe.send(f"{type(problem).__name__}: {problem}"[:200])


def examine_apart(family):
    """Examine a family in a new process; return its result or the reason why there is none."""
    context = multiprocessing.get_context("fork")  # importing transformers again takes longer
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=examine_and_send, args=(family, theirs))
    process.start()
    theirs.close()
    try:
        if not ours.poll(MAX_WALL_SECONDS):
            return f"killed: over {MAX_WALL_SECONDS} seconds"
        return ours.recv()
    except EOFError:  # ended without a result
        process.join()
        if process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
            return f"killed: over {MAX_CPU_SECONDS} seconds of processor time, or out of memory"
        return f"killed: exit code {process.exitcode}"
    finally:
        process.kill()
        process.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="1/1")
    parser.add_argument("families", nargs="*")
    options = parser.parse_args()
    number, count = map(int, options.part.split("/"))
    families = options.families or sorted(CONFIG_MAPPING)[number - 1 :: count]
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    counts, alarms, errors = collections.Counter(), 0, 0
    try:
        for family in families:
            result = examine_apart(family)
            if isinstance(result, str):
                counts["not examined"] += 1
                print(json.dumps([family, result]), flush=True)
                continue
            blocks, findings = result
            counts["with residual adds" if blocks else "without residual adds"] += 1
            alarms += any(severity != "info" for _, severity, _ in findings)
            errors += any(severity == "error" for _, severity, _ in findings)
            print(json.dumps([family, blocks, findings]), flush=True)
    except KeyboardInterrupt:
        parser.exit(130, "stopped\n")
    finally:
        listed = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS)
        print(
            f"{counts.total()} of {len(families)} families: {listed}; of these, {alarms} have "
            f"findings above info, {errors} have errors",
            flush=True,
        )


if __name__ == "__main__":
    main()
