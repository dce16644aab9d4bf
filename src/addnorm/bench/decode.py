"""Decoding benchmarks with a cache against Hugging Face, with equal weights and tokens.

Our own decoding, and the same model exported to CTranslate2.
"""

import importlib.util
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from addnorm.bench.base import OURS, Benchmark, Candidates
from addnorm.core.errors import UserError
from addnorm.data.tokenizer import END, PAD, START

VOCAB, NUM_SENTENCES, SOURCE_LENGTH, NUM_NEW_TOKENS = 8000, 32, 16, 40
PEER = "HF generate"
OWN_DECODING = "addnorm decode"
EXPORTS = {"float32": 1.5, "int8": 3.0}
"""Number formats of exported models, and the ratio to reach against Hugging Face."""


def make_benchmarks() -> Iterator[Benchmark]:
    """Yield benchmarks of greedy decoding and of beam search with five beams, then of exports."""
    for name, beam in (("greedy", 1), ("beam 5", 5)):
        yield Benchmark(f"decode {name}", partial(build_candidates, beam), {PEER: 1.4}, rounds=9)
    for dtype, goal in EXPORTS.items():
        build = partial(build_export_candidates, dtype)
        yield Benchmark("decode greedy, CTranslate2", build, {PEER: goal}, dtype, rounds=9)


def build_candidates(beam: int) -> Candidates:
    """Build candidates that decode 40 tokens for each of 32 sentences with a 6+6-layer Marian.

    The end token is suppressed, so that all sentences have the same length.

    Raises:
        UserError: transformers is not installed
        RuntimeError: the two candidates decode different tokens
    """
    if not importlib.util.find_spec("transformers"):
        raise UserError("this benchmark requires transformers; run pip install transformers")
    work = _make_work(beam)
    same = work.run_peer()[:, 1:] == torch.tensor(work.run_ours())
    if not bool(same.all()):
        share = float(same.float().mean())
        raise RuntimeError(f"{PEER} and addnorm agree on {share:.1%} of the tokens; expected all")
    return {OURS: work.run_ours, PEER: work.run_peer}


def build_export_candidates(dtype: str) -> Candidates:
    """Build candidates that decode the same sentences greedily, ours through CTranslate2.

    Args:
        dtype: number format of the exported weights

    Raises:
        UserError: transformers or ctranslate2 is not installed
        RuntimeError: an export in float32 decodes different tokens
    """
    for name in ("transformers", "ctranslate2"):
        if not importlib.util.find_spec(name):
            raise UserError(f"this benchmark requires {name}; run pip install 'addnorm[export]'")
    from addnorm.decode.batching import decode
    from addnorm.exporters.ctranslate2.engine import CTranslate2Engine
    from addnorm.exporters.ctranslate2.spec import build_spec
    from addnorm.exporters.ctranslate2.write import write_spec

    work = _make_work(beam=1)
    with tempfile.TemporaryDirectory() as folder:
        spec = build_spec(work.model, add_source_end=False)
        write_spec(spec, work.model, Path(folder), quantize=dtype)
        threads = torch.get_num_threads()
        engine = CTranslate2Engine(folder, work.model.config, stored_type=dtype, threads=threads)

    def run_engine() -> list[tuple[int, ...]]:
        return [best[0].tokens for best in decode(engine, work.sentences, work.options, end=END)]

    if dtype == "float32" and run_engine() != work.run_ours():
        raise RuntimeError("CTranslate2 and addnorm decode different tokens")
    return {OURS: run_engine, PEER: work.run_peer, OWN_DECODING: work.run_ours}


@dataclass(frozen=True)
class _Work:
    """A model, sentences, and the two functions that decode them."""

    model: Any
    sentences: list[Any]
    options: Any
    run_ours: Callable[[], list[tuple[int, ...]]]
    run_peer: Callable[[], Any]


def _make_work(beam: int) -> _Work:
    from addnorm.decode.batching import decode
    from addnorm.decode.options import DecodingOptions
    from addnorm.decode.stepper import Sentence
    from addnorm.interop import from_hf

    theirs = _build_marian()
    ours = from_hf(theirs).model.eval()
    for stack in ours.stacks:
        stack.packed = True
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(4, VOCAB, (NUM_SENTENCES, SOURCE_LENGTH), generator=generator)
    sentences = [Sentence((START,), NUM_NEW_TOKENS, tuple(row)) for row in source.tolist()]
    options = DecodingOptions(beam=beam, batch_tokens=1 << 20)

    def run_ours() -> list[tuple[int, ...]]:
        return [best[0].tokens for best in decode(ours, sentences, options, end=END)]

    def run_peer() -> Any:
        with torch.inference_mode():
            return theirs.generate(
                source,
                attention_mask=torch.ones_like(source),
                max_new_tokens=NUM_NEW_TOKENS,
                min_new_tokens=NUM_NEW_TOKENS,
                num_beams=beam,
                do_sample=False,
            )

    return _Work(ours, sentences, options, run_ours, run_peer)


def _build_marian() -> Any:
    transformers: Any = import_module("transformers")  # untyped

    transformers.logging.set_verbosity_error()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.MarianMTModel(
            transformers.MarianConfig(
                vocab_size=VOCAB,
                d_model=256,
                encoder_layers=6,
                decoder_layers=6,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=1024,
                decoder_ffn_dim=1024,
                max_position_embeddings=128,
                activation_function="relu",
                scale_embedding=True,
                pad_token_id=PAD,
                bos_token_id=START,
                eos_token_id=END,
                decoder_start_token_id=START,
                attn_implementation="sdpa",
            )
        ).eval()
        with torch.no_grad():  # default weights are so small that all tokens are equally likely
            for name, weight in model.named_parameters():
                if weight.ndim > 1 and "embed_positions" not in name:
                    weight.copy_(torch.randn(weight.shape) * weight.shape[-1] ** -0.5)
    model.final_logits_bias[0, :4] = -1e4  # suppress padding and end tokens
    model.generation_config.forced_eos_token_id = None
    return model
