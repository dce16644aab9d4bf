"""Rewiring of models in folders: which model, which data, and what is written."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.files import create_folder, read_json, write_json
from addnorm.interop import load_hf
from addnorm.interop.transformers_compat import transformers_library
from addnorm.models import Model, load
from addnorm.rewiring.core_models import config_of, get_core
from addnorm.rewiring.report import RewireReport
from addnorm.rewiring.rewire_model import rewire
from addnorm.train import TrainedRun
from addnorm.train.run_folder import CONFIG as RUN_CONFIG

HF_PREFIX = "hf:"
REPORT_FILE = "rewire.json"
LENGTH, SEQUENCES = 64, 16
"""Size of a calibration batch in tokens and sequences."""
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt"),
    *("special_tokens_map.json", "added_tokens.json", "spiece.model", "tokenizer.model"),
    *("sentencepiece.bpe.model", "source.spm", "target.spm", "chat_template.jinja"),
)
"""Files that belong to a tokenizer, and are copied with a model."""
MAX_CHARACTERS = 400_000
"""Characters of a text file that are read."""

Tokenize = Callable[[str], list[int]]


def rewire_folder(
    target: str, out: str | Path, *, text: str | Path | None = None, **changes: Any
) -> RewireReport:
    """Rewire the model of a folder, and write the result to another one.

    Args:
        target: `hf:FOLDER` of a Hugging Face model, or a folder of `model.save` or `addnorm train`
        out: new or empty folder; gets the model and the report as `rewire.json`
        text: text file for fits and losses; required by changes that are fitted
        **changes: arguments of `addnorm.rewire`

    Raises:
        UserError: the folder has no model, or as `addnorm.rewire`
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"out: expected a new or empty folder, got {out}; choose another one")
    model, tokenize = load_target(target)
    if text is None:
        batches = _random_batches(model)
        limit = "equal_at_start"
        changes["require"] = changes.get("require") or limit
        try:
            result, report = rewire(model, example_inputs=batches, **changes)
        except UserError as problem:
            if str(problem).startswith("require:") and "fitted" in str(problem):
                reason = str(problem).partition("got fitted: ")[2]
                raise UserError(
                    f"text: expected a text file for a change that must be fitted, got none; pass "
                    f"--text FILE ({reason})"
                ) from None
            raise
    else:
        if tokenize is None:
            raise UserError(
                f"text: expected a folder with a tokenizer, got {target}, which has none; use "
                "addnorm.rewire in Python with batches of ids"
            )
        result, report = rewire(model, calibrate=_read_text(Path(text), tokenize, model), **changes)
    with create_folder(out.absolute()) as folder:
        result.save(folder)
        for file in _tokenizer_files(target):
            shutil.copy(file, folder)
        write_json(folder / REPORT_FILE, report.to_dict())
    return report


def _tokenizer_files(target: str) -> list[Path]:
    folder = Path(target.removeprefix(HF_PREFIX))
    return [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]


def load_target(target: str) -> tuple[nn.Module, Tokenize | None]:
    """Return the model of a folder, and its tokenizer as a function, if it has one."""
    if target.startswith(HF_PREFIX):
        folder = Path(target.removeprefix(HF_PREFIX))
        return load_hf(folder), _load_hf_tokenizer(folder)
    folder = Path(target)
    if (folder / RUN_CONFIG).is_file():
        run = TrainedRun.open(folder, device="cpu")
        return run.model, lambda line: list(run.tokenizer.encode([line])[0])
    config = folder / "config.json"
    if config.is_file() and "architectures" in read_json(config):
        raise UserError(
            f"MODEL: expected a folder of addnorm, got one of Hugging Face; use {HF_PREFIX}{target}"
        )
    return load(folder), None


def _load_hf_tokenizer(folder: Path) -> Tokenize | None:
    if not _tokenizer_files(str(folder)):
        return None
    try:
        tokenizer = transformers_library().AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as problem:
        raise UserError(f"{folder}: the tokenizer could not be read ({problem})") from None
    return lambda line: list(tokenizer(line, add_special_tokens=False)["input_ids"])


def _random_batches(model: nn.Module) -> Any:
    """Return random inputs, for a proof."""
    config = config_of(model)
    assert config is not None
    generator = torch.Generator().manual_seed(0)
    if config.image is not None:
        shape = (2, config.channels, config.image, config.image)
        return torch.randn(shape, generator=generator)
    high = min(config.vocab or 2, config.source_vocab or config.vocab or 2)
    ids = torch.randint(0, high, (2, 8), generator=generator)
    return _as_inputs(model, ids)


def _read_text(path: Path, tokenize: Tokenize, model: nn.Module) -> Any:
    """Return batches of a text, cut into sequences of equal length."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")[:MAX_CHARACTERS]
    except OSError as problem:
        raise UserError(f"text: cannot read {path} ({problem.strerror})") from None
    ids = [token for line in text.splitlines() if line.strip() for token in tokenize(line)]
    core = get_core(model)
    assert core is not None
    length = min(LENGTH, *(stack.positions.max_length or LENGTH for stack in core.stacks))
    count = min(len(ids) // length, SEQUENCES)
    if count < 1:
        raise UserError(
            f"text: expected at least {length} tokens, got {len(ids)} in {path}; pass more text"
        )
    return _as_inputs(model, torch.tensor(ids[: count * length]).view(count, length))


def _as_inputs(model: nn.Module, ids: Tensor) -> Any:
    config = config_of(model)
    assert config is not None
    is_pair = config.kind == "seq2seq"
    if isinstance(model, Model):
        return (ids, ids) if is_pair else (ids, 1) if config.kind == "prefix_lm" else ids
    return {"input_ids": ids} | ({"decoder_input_ids": ids} if is_pair else {})
