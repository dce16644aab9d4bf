"""Reference implementations of the measurements: plain loops in double precision."""

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


def stream_variance(stream, valid):
    each = [variance(token) for token in list_valid_tokens(stream, valid)]
    return sum(each) / len(each)


def residual_dependency(before, branch, valid):
    branches = list_valid_tokens(branch, valid)
    sums = list_valid_tokens(before.double() + branch.double(), valid)
    return variance(chain(*branches)) / variance(chain(*sums))


def attention_entropy(p, valid):
    entropies = []
    for b, heads in enumerate(p.double().tolist()):
        for rows in heads:
            for t, row in enumerate(rows):
                if (valid is None or valid[b, t]) and sum(row) > 0:
                    entropies.append(-sum(each * math.log(each) for each in row if each > 0))
    return sum(entropies) / len(entropies)


def max_logit(logits, valid, visible):
    """logits: (B, heads, L, S) unmasked; visible(b, t, s): whether query t may attend to key s."""
    logits = logits.detach()
    batch, heads, length, keys = logits.shape
    return max(
        float(logits[b, h, t, s])
        for b in range(batch)
        for h in range(heads)
        for t in range(length)
        for s in range(keys)
        if (valid is None or valid[b, t]) and visible(b, t, s)
    )


def norm(tensors):
    return math.sqrt(
        math.fsum(float(number) ** 2 for tensor in tensors for number in tensor.flatten())
    )
