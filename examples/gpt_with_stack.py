# %% [markdown]
# # A nanoGPT whose wiring is chosen by name
#
# The model of nanoGPT in 40 lines. Its attention and feed-forward are ordinary modules without any
# residual connection or norm: `addnorm.Stack` adds both, in the arrangement that you name. The text
# is Python code, the module `torch.nn.functional`.

# %%
import inspect

import torch
from torch import nn
from torch.nn import functional as F

import addnorm

text = inspect.getsource(F)
letters = sorted(set(text))
index = {letter: number for number, letter in enumerate(letters)}
data = torch.tensor([index[letter] for letter in text])
LENGTH, DIM, HEADS = 32, 32, 4

# %% [markdown]
# ## Sub-layers
#
# A sub-layer maps `(batch, length, dim)` to the same shape. No `x + ...`, no norm.


# %%
class CausalAttention(nn.Module):
    """Multi-head attention in which a token attends to itself and to earlier ones."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).transpose(1, 3).unbind(2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


def feed_forward() -> nn.Module:
    """Return two linear maps with a GELU between them."""
    return nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))


class GPT(nn.Module):
    """Embeddings, a stack and an output projection that shares the token embedding."""

    def __init__(self, wiring: str, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(len(letters), DIM)
        self.positions = nn.Embedding(LENGTH, DIM)
        nn.init.normal_(self.tokens.weight, std=DIM**-0.5)
        sublayers = [layer for _ in range(depth) for layer in (CausalAttention(), feed_forward())]
        self.stack = addnorm.Stack(sublayers, dim=DIM, wiring=wiring, norm="rms")
        self.stack.init_weights(seed=0)  # the initialization that belongs to the wiring

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) * DIM**0.5 + self.positions.weight[: ids.shape[1]]
        return F.linear(self.stack(x), self.tokens.weight)


# %% [markdown]
# ## Train
#
# The same loop for three wirings of 12 layers, without warm-up.


# %%
def train(wiring: str, depth: int = 12, steps: int = 150) -> float:
    """Return the mean loss of the last ten steps, in nats per character."""
    torch.manual_seed(0)
    model = GPT(wiring, depth)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(data) - LENGTH - 1, (8,)).tolist()
        rows = torch.stack([data[start : start + LENGTH + 1] for start in starts])
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-10:]) / 10


shares = torch.bincount(data) / len(data)
print(f"letter frequencies alone: loss {-(shares * shares.log()).nansum():.1f}")
for wiring in ("post_ln", "pre_ln", "deepnorm"):
    print(f"{wiring:10} loss {train(wiring):.1f}")

# %% [markdown]
# Post-LN has learned hardly more than how frequent each letter is; the two others are ahead. One
# seed and one learning rate decide nothing: [the next example](compare_own_text.py) compares with
# several of both.
