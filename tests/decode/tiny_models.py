"""Small models with something to say, and slow, plain ways to decode them."""

import itertools
import random

import torch

from addnorm.decode import Sentence
from addnorm.decode.stepper import Stepper
from addnorm.models import build

START, END = 1, 2
WORDS = {"vocab": 7, "dim": 8, "depth": 2, "heads": 2, "tied": False}  # of 7, four can be written


def model_of(kind, seed=0, **changes):
    """In float64, so that the order of additions decides nothing; sharp enough to have taste."""
    model = build(kind=kind, seed=seed, **WORDS | changes).eval().double()
    with torch.no_grad():
        model.head.table.mul_(2.0)
    return model


def endless(kind, seed=0):
    """A model that never ends by itself."""
    model = model_of(kind, seed, head_bias=True)
    with torch.no_grad():
        model.head.bias[END] = -100.0
    return model


def sentences_of(kind, seed=0, *, count=7, limit=9, vocab=7, prefix=3):
    """Sources and prefixes of all lengths."""
    chance = random.Random(seed)

    def words(most):
        return tuple(chance.randrange(4, vocab) for _ in range(chance.randint(0, most)))

    return [
        Sentence(
            prefix=(START, *words(prefix)),
            limit=chance.randint(1, limit),
            source=(*words(6), END) if kind == "seq2seq" else (),
            number=number,
        )
        for number in range(count)
    ]


@torch.no_grad()
def log_p(model, sentence, tokens):
    """Log-probabilities of the token behind each of `tokens`, (tokens + 1, vocab), in one pass."""
    ids = torch.tensor([[*sentence.prefix, *tokens]])
    logits = model(torch.tensor([sentence.source]), ids) if sentence.source else model(ids)
    return logits[0, len(sentence.prefix) - 1 :].log_softmax(-1)


def score_of(model, sentence, tokens):
    """What a model itself says about new tokens, the end included."""
    rows = log_p(model, sentence, tokens[:-1])
    return sum(rows[place, token].item() for place, token in enumerate(tokens))


def every(sentence, vocab):
    """All that can be written: it ends, or has reached the limit."""
    words = range(4, vocab)
    for length in range(sentence.limit):
        for start in itertools.product(words, repeat=length):
            yield (*start, END)
    yield from itertools.product(words, repeat=sentence.limit)


def plain_beam(model, sentence, options):
    """Beam search with lists, one sentence, no cache: (tokens with the end, score) of the best."""
    running, pool = [((), 0.0)], []
    for length in range(1, sentence.limit + 1):
        made = []
        for place, (tokens, score) in enumerate(running):
            row = log_p(model, sentence, tokens)[-1].tolist()
            made += [
                (-(score + row[token]), place, token, tokens)
                for token in range(len(row))
                if token == END or token >= 4
            ]
        made = [(-cost, (*tokens, token)) for cost, _, token, tokens in sorted(made)]
        made = made[: 2 * options.beam]
        last = length == sentence.limit
        pool += [
            (score / options.penalty(length), -number, tokens, score)
            for number, (score, tokens) in enumerate(made[: options.beam], start=len(pool))
            if tokens[-1] == END or last
        ]
        pool = sorted(pool, key=lambda each: -each[0])[: options.beam]  # stable: the older first
        running = [(tokens, score) for score, tokens in made if tokens[-1] != END][: options.beam]
        full = len(pool) == options.beam
        if last or (full and pool[-1][0] >= running[0][1] / options.penalty(length)):
            break
    return [(tokens, score) for _, _, tokens, score in pool][: options.nbest]


def written(hypotheses):
    """The tokens of each, with the end."""
    return [(*each.tokens, *([END] if each.ended else [])) for each in hypotheses]


class Spy(Stepper):
    """A stepper that remembers what was asked of it."""

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
