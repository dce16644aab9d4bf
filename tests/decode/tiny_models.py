"""Tiny models for decoding tests, and slow reference implementations."""

import itertools
import random

import torch

from addnorm.decode import Sentence
from addnorm.decode.stepper import Stepper
from addnorm.models import build

START, END = 1, 2
SIZES = {"vocab": 7, "dim": 8, "depth": 2, "heads": 2, "tied": False}  # 4 tokens can be generated


def make_model(kind, seed=0, **changes):
    """Return a float64 model with sharp logits, so that rounding does not decide the ranking."""
    model = build(kind=kind, seed=seed, **SIZES | changes).eval().double()
    with torch.no_grad():
        model.head.table.mul_(2.0)
    return model


def make_endless_model(kind, seed=0):
    """Return a model that never generates the end token."""
    model = make_model(kind, seed, head_bias=True)
    with torch.no_grad():
        model.head.bias[END] = -100.0
    return model


def make_sentences(kind, seed=0, *, count=7, limit=9, vocab=7, prefix=3):
    """Return sentences with sources and prefixes of random lengths."""
    rng = random.Random(seed)

    def random_tokens(longest):
        return tuple(rng.randrange(4, vocab) for _ in range(rng.randint(0, longest)))

    return [
        Sentence(
            prefix=(START, *random_tokens(prefix)),
            limit=rng.randint(1, limit),
            source=(*random_tokens(6), END) if kind == "seq2seq" else (),
            number=number,
        )
        for number in range(count)
    ]


@torch.no_grad()
def log_p(model, sentence, tokens):
    """Return log-probabilities (tokens + 1, vocab) of the next token at each position."""
    ids = torch.tensor([[*sentence.prefix, *tokens]])
    logits = model(torch.tensor([sentence.source]), ids) if sentence.source else model(ids)
    return logits[0, len(sentence.prefix) - 1 :].log_softmax(-1)


def sequence_score(model, sentence, tokens):
    """Return the model's log-probability of new tokens, including the end token."""
    rows = log_p(model, sentence, tokens[:-1])
    return sum(rows[index, token].item() for index, token in enumerate(tokens))


def all_outputs(sentence, vocab):
    """Yield every possible output: it ends with the end token or reaches the limit."""
    tokens = range(4, vocab)
    for length in range(sentence.limit):
        for start in itertools.product(tokens, repeat=length):
            yield (*start, END)
    yield from itertools.product(tokens, repeat=sentence.limit)


def reference_beam_search(model, sentence, options):
    """Return (tokens with the end token, score) of the best outputs, without batching or cache."""
    running, pool = [((), 0.0)], []
    for length in range(1, sentence.limit + 1):
        candidates = []
        for parent, (tokens, score) in enumerate(running):
            row = log_p(model, sentence, tokens)[-1].tolist()
            candidates += [
                (-(score + row[token]), parent, token, tokens)
                for token in range(len(row))
                if token == END or token >= 4
            ]
        candidates = [(-cost, (*tokens, token)) for cost, _, token, tokens in sorted(candidates)]
        candidates = candidates[: 2 * options.beam]
        last = length == sentence.limit
        pool += [
            (score / options.penalty(length), -number, tokens, score)
            for number, (score, tokens) in enumerate(candidates[: options.beam], start=len(pool))
            if tokens[-1] == END or last
        ]
        pool = sorted(pool, key=lambda each: -each[0])[: options.beam]  # stable: older ones first
        running = [(tokens, score) for score, tokens in candidates if tokens[-1] != END][
            : options.beam
        ]
        full = len(pool) == options.beam
        if last or (full and pool[-1][0] >= running[0][1] / options.penalty(length)):
            break
    return [(tokens, score) for _, _, tokens, score in pool][: options.nbest]


def tokens_with_end(hypotheses):
    """Return the tokens of each hypothesis, including the end token."""
    return [(*each.tokens, *([END] if each.ended else [])) for each in hypotheses]


class SpyStepper(Stepper):
    """Stepper that records its calls."""

    def __init__(self, inner):
        self.inner, self.steps, self.orders, self.kept = inner, [], [], []
        self.end, self.forbidden_tokens = inner.end, inner.forbidden_tokens

    def start(self):
        return self.inner.start()

    def step(self, tokens):
        self.steps.append(len(tokens))
        return self.inner.step(tokens)

    def reorder(self, index):
        self.inner.reorder(index)

    def expand_beams(self, beam):
        self.inner.expand_beams(beam)

    def reorder_beams(self, parents):
        self.orders.append(parents.tolist())
        self.inner.reorder_beams(parents)

    def select_sentences(self, sentences):
        self.kept.append(sentences.tolist())
        self.inner.select_sentences(sentences)

    def _logits(self, ids, mask):
        raise NotImplementedError
