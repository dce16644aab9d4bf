"""Small models that are not addnorm's, and training loops that may be monitored."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

VOCAB, LENGTH, DIM = 23, 9, 16


class Handmade(nn.Module):
    """Pre-LN Transformer without submodules: matrices, norm and attention written out."""

    def __init__(self, depth=2, dim=DIM, dropout=0.0, reentrant=None, final_norm=True):
        super().__init__()
        self.depth, self.dropout, self.reentrant = depth, dropout, reentrant
        self.final_norm = final_norm
        self.table = nn.Parameter(0.5 * torch.randn(VOCAB, dim))
        self.qkv = nn.ParameterList(torch.randn(dim, 3 * dim) / dim**0.5 for _ in range(depth))
        self.out = nn.ParameterList(torch.randn(dim, dim) / dim**0.5 for _ in range(depth))
        self.up = nn.ParameterList(torch.randn(dim, 2 * dim) / dim**0.5 for _ in range(depth))
        self.down = nn.ParameterList(torch.randn(2 * dim, dim) / dim**0.5 for _ in range(depth))
        self.gains = nn.ParameterList(torch.ones(dim) for _ in range(2 * depth + 1))

    def norm(self, x, index):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.gains[index]

    def drop(self, x):
        return nn.functional.dropout(x, self.dropout, self.training)

    def layer(self, x, index):
        q, k, v = (self.norm(x, 2 * index) @ self.qkv[index]).chunk(3, -1)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        x = x + self.drop(weights @ v @ self.out[index])
        h = torch.relu(self.norm(x, 2 * index + 1) @ self.up[index]) @ self.down[index]
        return x + self.drop(h)

    def forward(self, ids):
        x = self.table[ids]
        for index in range(self.depth):
            if self.reentrant is None:
                x = self.layer(x, index)
            else:
                x = torch.utils.checkpoint.checkpoint(
                    self.layer, x, index, use_reentrant=self.reentrant
                )
        return (self.norm(x, -1) if self.final_norm else x) @ self.table.T


class TorchModel(nn.Module):
    """Embedding, `nn.TransformerEncoder` and head."""

    def __init__(self, depth=2, dropout=0.1, norm_first=False, dim=DIM):
        super().__init__()
        self.table = nn.Embedding(VOCAB, dim)
        layer = nn.TransformerEncoderLayer(
            dim, 4, 2 * dim, dropout=dropout, batch_first=True, norm_first=norm_first
        )
        final = nn.LayerNorm(dim) if norm_first else None
        self.encoder = nn.TransformerEncoder(layer, depth, norm=final, enable_nested_tensor=False)
        for parameter in self.encoder.parameters():  # torch clones its layers
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        return self.head(self.encoder(self.table(ids), mask=mask, is_causal=True))


def make_gpt2(**changes):
    import transformers

    config = transformers.GPT2Config(
        **{"n_layer": 2, "n_embd": DIM, "n_head": 4, "vocab_size": VOCAB, "n_positions": 32}
        | {"bos_token_id": 1, "eos_token_id": 1, "use_cache": False}
        | changes
    )
    return transformers.GPT2LMHeadModel(config)


def build(make, seed=0):
    """Build a model from a seed of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def make_batch(step, rows=6):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(VOCAB, (rows, LENGTH), generator=generator)


def compute_loss(model, ids):
    logits = model(ids)
    logits = getattr(logits, "logits", logits)
    return cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def train(
    model, optimizer, monitor=None, *, steps=5, accumulate=1, clip=None, context=None, run=None
):
    """Train and return the losses; `run` is the wrapped model."""
    run = model if run is None else run
    torch.manual_seed(3)
    model.train()
    losses = []
    for step in range(1, steps + 1):
        for part in range(accumulate):
            if context is None:
                loss = compute_loss(run, make_batch(10 * step + part))
            else:
                with context():
                    loss = compute_loss(run, make_batch(10 * step + part))
            (loss / accumulate).backward()
            losses.append(loss.item())
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        if monitor is not None:
            monitor.step(loss)
    return losses
