"""Comparisons that claims by training share, so that common cells are trained once.

Each function fixes the task, the model size and the number of steps; the claim chooses arms, depths
and warm-ups. All arms of a comparison have the same learning rates, seeds and batches.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from addnorm.claims.claim import Budget
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.spec import Comparison

DATES: dict[str, Any] = {
    "task": "translate", "tokenizer": "char", "score": 0, "monitor_every": 0, "max_length": 32,
    "dropout": 0.0, "label_smoothing": 0.0, "schedule": "constant",
}  # fmt: skip
"""Translation of dates from English to German, character by character."""
TINY: dict[str, Any] = {
    "dim": 8,
    "heads": 2,
    "batch_tokens": 64,
    "steps": 4,
    "seeds": 1,
    "valid_every": 4,
    "save_every": 4,
}
SMALL: dict[str, Any] = {"dim": 32, "heads": 2, "batch_tokens": 512}
LARGE: dict[str, Any] = {"dim": 128, "heads": 4, "batch_tokens": 1024}


SECOND_ROUND: dict[str, Any] = {"first_seed": 200}
"""Seeds of the second round of the standard budget, unused in the first; see the ledger."""
THIRD_ROUND: dict[str, Any] = {"first_seed": 300}
"""Seeds of the third round of the standard budget, unused before."""
FIFTH_ROUND: dict[str, Any] = {"first_seed": 500}
"""Seeds of the fifth round of the standard budget, unused before."""
DEEP_LRS = [1e-4, 5e-4, 2e-3, 8e-3, 3.2e-2]
"""Learning rates of deep models; the edges are expected to be worse than the values between."""
SHALLOW_LRS = [5e-4, 2e-3, 8e-3, 3e-2]
"""Learning rates of shallow models."""


def deep_comparison(
    budget: Budget,
    wiring: list[str],
    *,
    depths: list[int] | None = None,
    arms_without_warmup: list[str] | None = None,
    arms_with_warmup: list[str] | None = None,
    seeds: int = 5,
    valid_every: int = 75,
) -> Comparison:
    """Return a comparison of deep encoder-decoders (12 layers each; 18 in the full budget).

    Args:
        budget: smoke, standard or full
        wiring: arms trained without warm-up and with one of a quarter of the steps
        depths: depths to use instead
        arms_without_warmup: arms trained without warm-up only
        arms_with_warmup: arms trained with warm-up only
        seeds: seeds of the standard budget; 100 cells take about fifteen minutes
        valid_every: steps between validations in the standard budget
    """
    at: dict[Budget, dict[str, Any]] = {
        "smoke": TINY | {"valid_every": 2},
        "standard": SMALL
        | SECOND_ROUND
        | {"steps": 150, "seeds": seeds, "valid_every": valid_every},
        "full": LARGE | {"steps": 2000, "seeds": 5, "valid_every": 100},
    }
    depth: dict[Budget, list[int]] = {"smoke": [2], "standard": [12], "full": [18]}
    spec = at[budget]
    axes = {
        "depth": [1, 2] if depths and budget == "smoke" else depths or depth[budget],
        "lr": [1e-3] if budget == "smoke" else DEEP_LRS,
    }
    steps = max(1, spec["steps"] // 4)
    groups = ((wiring, [0, steps]), (arms_without_warmup, [0]), (arms_with_warmup, [steps]))
    grids = [axes | {"wiring": arms, "warmup": warmup} for arms, warmup in groups if arms]
    return parse_comparison(DATES | spec | {"grids": grids})


def use_captions(spec: Comparison) -> Comparison:
    """Return a comparison with the tokenizer and length of Multi30k's captions."""
    keys = spec.keys | {"tokenizer": "bpe", "vocab": 2000, "max_length": 48}
    return spec.model_copy(update={"keys": keys})


FAILING_LRS = [1e-4, 3e-4, 1e-3]
"""Learning rates of arms that are expected to fail at 18 layers: Post-LN of twelve layers was best
at 5e-4 in the second round, and deeper models want lower rates."""
TRAINING_LR = 2e-3
"""Learning rate of all other arms at 18 layers. In the second round every one of them was at its
best or close to it at this rate; none is tuned, so that tuning favors the arms that are to fail."""


TUNED_LRS = [5e-4, 1e-3, TRAINING_LR]
"""Learning rates of B2T at 18 layers, for which `TRAINING_LR` was too high in two of four seeds."""


def very_deep_comparison(
    budget: Budget,
    failing: list[str],
    *,
    arms_without_warmup: list[str],
    arms_with_warmup: list[str] | None = None,
    tuned_arms: list[str] | None = None,
    tuned_lrs: Sequence[float] = (),
    seeds: int = 4,
    **keys: Any,
) -> Comparison:
    """Return a comparison of encoder-decoders with 18 layers each, where Post-LN does not train.

    Four seeds: at twelve layers the progress of Post-LN had a standard deviation of 0.07, so that
    its interval is about 0.11 wide on either side.

    Args:
        budget: smoke, standard or full
        failing: arms expected to fail, tuned over learning rate and warm-up (none, or a quarter of
            the steps)
        arms_without_warmup: arms trained at one learning rate, without warm-up
        arms_with_warmup: arms trained at one learning rate, with warm-up
        tuned_arms: arms trained with warm-up at that learning rate and two lower ones
        tuned_lrs: learning rates of these arms instead
        seeds: seeds of the standard budget
        keys: fields that replace those of the standard budget, such as `steps`
    """
    at: dict[Budget, dict[str, Any]] = {
        "smoke": TINY | {"depth": 2},
        "standard": SMALL | THIRD_ROUND | {"depth": 18, "steps": 120, "seeds": seeds} | keys,
        "full": LARGE | {"depth": 18, "steps": 2000, "seeds": 5, "valid_every": 100},
    }
    spec = {"valid_every": at[budget]["steps"], "save_every": at[budget]["steps"]} | at[budget]
    rates = [TRAINING_LR] if budget == "smoke" else FAILING_LRS
    warmup = max(1, spec["steps"] // 4)
    groups = (
        (failing, [0, warmup], rates),
        (arms_without_warmup, [0], [TRAINING_LR]),
        (arms_with_warmup, [warmup], [TRAINING_LR]),
        (
            tuned_arms,
            [warmup],
            [TRAINING_LR] if budget == "smoke" else list(tuned_lrs or TUNED_LRS),
        ),
    )
    grids = [{"wiring": arms, "warmup": w, "lr": lr} for arms, w, lr in groups if arms]
    depth = spec.pop("depth")
    return parse_comparison(DATES | spec | {"grids": [grid | {"depth": depth} for grid in grids]})


def warmup_comparison(
    budget: Budget,
    wiring: list[str],
    *,
    with_warmup: list[bool],
    optimizer: str,
    seeds: int = 6,
    lrs: Sequence[float] = (1e-3, 2e-3, 4e-3),
    seed_round: Mapping[str, Any] = THIRD_ROUND,
) -> Comparison:
    """Return a comparison of six-layer encoder-decoders.

    The default learning rates are a factor of 2 apart around 2e-3, where Post-LN with warm-up was
    best in the second round, so that a higher rate that only warm-up allows is not missed.

    Args:
        budget: smoke, standard or full
        wiring: wirings to compare
        with_warmup: whether to warm up for a quarter of the steps; several values are compared
        optimizer: optimizer of all arms
        seeds: seeds of the standard budget
        lrs: learning rates of the standard budget
        seed_round: first seed of the standard budget
    """
    at: dict[Budget, dict[str, Any]] = {
        "smoke": TINY | {"depth": 1, "lr": [1e-3]},
        "standard": SMALL
        | dict(seed_round)
        | {"depth": 6, "steps": 160, "seeds": seeds, "lr": list(lrs)}
        | {"valid_every": 160, "save_every": 160},
        "full": LARGE | {"depth": 6, "steps": 2000, "seeds": 5, "lr": DEEP_LRS},
    }
    spec = at[budget]
    warmup = [spec["steps"] // 4 if each else 0 for each in with_warmup]
    return parse_comparison(
        DATES | spec | {"wiring": wiring, "warmup": warmup, "optimizer": optimizer}
    )


def norm_comparison(
    budget: Budget, norm: list[str], *, small_corpus: bool = False, **keys: Any
) -> Comparison:
    """Return a comparison of norms in Pre-LN with three layers and a short warm-up.

    Args:
        budget: smoke, standard or full
        norm: norms to compare
        small_corpus: train longer, for a corpus small enough to be memorized
        keys: further recipe keys
    """
    at: dict[Budget, dict[str, Any]] = {
        "smoke": TINY | {"depth": 1, "lr": [1e-3]},
        "standard": SMALL
        | SECOND_ROUND
        | {"depth": 3, "steps": 300 if small_corpus else 200, "seeds": 6, "lr": SHALLOW_LRS},
        "full": LARGE
        | {"depth": 6, "steps": 5000 if small_corpus else 3000, "seeds": 8, "lr": SHALLOW_LRS},
    }
    spec = at[budget]
    more = {"wiring": ["pre_ln"], "norm": norm, "warmup": spec["steps"] // 10}
    return parse_comparison(DATES | spec | more | keys)


SMALL_CORPUS_RECORDS: dict[Budget, int] = {"smoke": 20, "standard": 200, "full": 500}
"""Training pairs of a corpus small enough to be memorized."""


def shallow_comparison(budget: Budget, wiring: list[str]) -> Comparison:
    """Return a comparison of two-layer encoder-decoders, without and with warm-up."""
    at: dict[Budget, dict[str, Any]] = {
        "smoke": TINY | {"depth": 1, "lr": [1e-3]},
        "standard": SMALL | {"depth": 2, "steps": 200, "seeds": 4, "lr": SHALLOW_LRS},
        "full": LARGE | {"depth": 3, "steps": 3000, "seeds": 8, "lr": SHALLOW_LRS},
    }
    spec = at[budget]
    return parse_comparison(DATES | spec | {"wiring": wiring, "warmup": [0, spec["steps"] // 4]})
