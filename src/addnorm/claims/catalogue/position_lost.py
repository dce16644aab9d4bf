"""Claim: without residual connections the position of a token is lost."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from addnorm.claims.checks import Check
from addnorm.claims.claim import ChartSpec, register
from addnorm.claims.init_claims import (
    BudgetSettings,
    InitClaim,
    estimate_per_seed,
    make_budget_table,
    make_encoder,
    make_row,
    max_value,
    select_rows,
)
from addnorm.core.cards import Card
from addnorm.core.rows import Row
from addnorm.sublayers import make_positions

MAX_CHANCE_RATIO, MIN_ACCURACY = 2.0, 0.5
"""Largest accuracy relative to chance without skips; smallest accuracy with them."""
PROBE_RESOLUTION = 1e-2
"""Regularization of the probe, relative to the size of its inputs."""
NO_SKIPS, WITH_SKIPS = "no skip", "with skips"


@register(
    Card(
        name="position_lost",
        title="Residuals carry positions",
        formula="position(x_t) cannot be read from N(f(x))_t, only from N(x + f(x))_t",
        paper=(
            "Vaswani and Huang, Transformers and Self-Attention, lecture 14 of CS224N at "
            "Stanford, 2019"
        ),
        summary=(
            "Residual connections carry the position of a token upwards: without them it cannot be "
            "read out after the first attention layer."
        ),
    )
)
class PositionLost(InitClaim):
    """Accuracy of a linear probe that predicts the position of held-out tokens.

    probe = argmin_W |X W - P|^2 + PROBE_RESOLUTION^2 * mean(X^2) * n * |W|^2

    X: (n, dim), tokens after the attention and LayerNorm of a layer
    P: (n, L), their one-hot positions; the prediction for a token is the largest entry of x W
    """

    # NOTE[DIFF]: the lecture shows attention maps of trained translation models; here the models
    # are untrained.
    paper_location = "the slide on residuals and positions"
    about = ("post_ln",)
    finding = (
        "without skips a probe still finds {no skip: right answers, times chance} times as many"
        " positions as chance, with skips {with skips: share of right answers} of all"
    )
    measured_on = "untrained layers of width 128, random tokens"
    reach = "untrained models with sinusoidal positions; trained attention may lose more"
    discussion = (
        "The figure that the statement rests on shows attention maps of trained models. Here "
        "the layers are untrained and the probe is linear: a fifth of the positions can still "
        "be read behind the first attention without skips, because averaging with nearly "
        "uniform weights shrinks the token's own part and does not remove it."
    )
    experiment = (
        "Random tokens with sinusoidal positions pass through untrained layers, once with skips "
        "as in Post-LN and once without. After each attention a ridge regression learns to "
        "predict the position of a token from one half of the sequences and is tested on the "
        f"other half; differences below {PROBE_RESOLUTION:g} of the size of the vectors have "
        "little influence on it."
    )
    rule = (
        f"Behind the first attention the share of right answers is at most {MAX_CHANCE_RATIO:g} "
        f"times chance without skips, and {MIN_ACCURACY:g} or more with them."
    )
    chart = ChartSpec(name="right", x="layer", y="positions named rightly")
    budgets = make_budget_table(
        seeds=(2, 8, 16),
        depth=(2, 4, 12),
        dim=(16, 128, 512),
        length=(8, 32, 64),
        sequences=(16, 256, 512),
    )

    def measure(self, settings: BudgetSettings) -> Iterator[Row]:
        dim, length, vocab = settings["dim"], settings["length"], 64
        stack = make_encoder("post_ln", settings["depth"], dim)
        positions = make_positions("sinusoid", dim=dim, heads=1, head_dim=dim, causal=False)
        table = torch.randn(vocab, dim)
        ids = torch.randint(vocab, (settings["sequences"], length))
        start = positions.add(table[ids], torch.arange(length).expand_as(ids))
        for arm in (NO_SKIPS, WITH_SKIPS):  # layer 0 is the embedding
            x = F.layer_norm(start, (dim,))
            yield make_row("right", _probe_accuracy(x), arm=arm, layer=0, chance=1 / length)
            for site, sublayer in enumerate(stack.sublayers):
                with torch.no_grad():
                    x = F.layer_norm(sublayer(x) + x * (arm == WITH_SKIPS), (dim,))
                if site % 2 == 0:
                    layer = site // 2 + 1
                    yield make_row(
                        "right", _probe_accuracy(x), arm=arm, layer=layer, chance=1 / length
                    )

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        bare, kept = (
            select_rows(rows, "right", arm=arm, layer=1) for arm in (NO_SKIPS, WITH_SKIPS)
        )
        times = [{**each, "value": each["value"] / each["chance"]} for each in bare]
        return [
            Check(
                "no skip: right answers, times chance",
                estimate_per_seed(times, max_value),
                high=MAX_CHANCE_RATIO,
            ),
            Check(
                "with skips: share of right answers",
                estimate_per_seed(kept, max_value),
                low=MIN_ACCURACY,
            ),
        ]


def _probe_accuracy(x: Tensor) -> float:
    """Fit the probe to the first half of the sequences; return its accuracy on the second."""
    train, test = x.double().chunk(2)
    sequences, length, dim = train.shape
    X, P = train.flatten(0, 1), torch.eye(length, dtype=x.double().dtype).repeat(sequences, 1)
    ridge = PROBE_RESOLUTION**2 * X.square().mean() * len(X)
    W = torch.linalg.solve(X.T @ X + ridge * torch.eye(dim, dtype=X.dtype), X.T @ P)
    predictions = (test @ W).argmax(-1)
    return (predictions == torch.arange(length)).double().mean().item()
