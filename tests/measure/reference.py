"""Reference implementations of the measurements: plain loops in double precision.

The reference of a site metric has the name of its function and takes the same `SiteActivations`;
`test_site_metrics.py` compares the two for every entry of `SITE_METRICS`.
"""

import math
from itertools import chain


def variance(numbers):
    numbers = [float(number) for number in numbers]
    mean = math.fsum(numbers) / len(numbers)
    return math.fsum((number - mean) ** 2 for number in numbers) / len(numbers)


def list_valid_tokens(x, valid):
    """Return the valid tokens of (B, L, D) as lists."""
    return [
        x[b, t].double().tolist()
        for b in range(x.shape[0])
        for t in range(x.shape[1])
        if valid is None or valid[b, t]
    ]


def stream_variance(activations):
    each = [variance(token) for token in list_valid_tokens(activations.stream, activations.valid)]
    return sum(each) / len(each)


def residual_dependency(activations):
    before, branch, valid = activations.before, activations.branch, activations.valid
    branches = list_valid_tokens(branch, valid)
    sums = list_valid_tokens(before.double() + branch.double(), valid)
    return variance(chain(*branches)) / variance(chain(*sums))


def attention_entropy(activations):
    (p,), valid = activations.probabilities, activations.valid
    entropies = []
    for b, heads in enumerate(p.double().tolist()):
        for rows in heads:
            for t, row in enumerate(rows):
                if (valid is None or valid[b, t]) and sum(row) > 0:
                    entropies.append(-sum(each * math.log(each) for each in row if each > 0))
    return sum(entropies) / len(entropies)


def max_logit(activations):
    (logits,), valid = activations.logits, activations.valid
    return max(
        max(row)
        for b, heads in enumerate(logits.detach().double().tolist())
        for rows in heads
        for t, row in enumerate(rows)
        if valid is None or valid[b, t]
    )


def norm(tensors):
    return math.sqrt(
        math.fsum(float(number) ** 2 for tensor in tensors for number in tensor.flatten())
    )
