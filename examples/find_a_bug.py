# %% [markdown]
# # Find a wiring bug with the doctor
#
# This model was meant as Pre-LN. It trains without an error message, and it is not Pre-LN: the
# normalized value is carried on instead of the raw one. The doctor finds the mistake from one
# forward and one backward pass.

# %%
from collections import Counter

import torch
from torch import nn

import addnorm


# %%
class Block(nn.Module):
    """Attention and feed-forward, each with a norm in front."""

    def __init__(self, dim: int, *, is_fixed: bool) -> None:
        super().__init__()
        self.is_fixed = is_fixed
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.ffn = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_fixed:
            h = self.norm1(x)
            x = x + self.attention(h, h, h, need_weights=False)[0]
            return x + self.ffn(self.norm2(x))
        x = self.norm1(x)
        x = x + self.attention(x, x, x, need_weights=False)[0]  # adds to the normalized x
        x = self.norm2(x)
        return x + self.ffn(x)


class Model(nn.Module):
    """Three blocks, a final norm and a head."""

    def __init__(self, *, is_fixed: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.blocks = nn.ModuleList(Block(32, is_fixed=is_fixed) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 100)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


# %% [markdown]
# ## Ask the doctor

# %%
torch.manual_seed(0)
ids = torch.randint(100, (2, 9))
report = addnorm.doctor(Model(is_fixed=False), ids)
print("wiring:", {block.wiring for block in report.blocks})
print("findings:", Counter(finding.rule for finding in report.findings).most_common())
first = report.findings[0]
print(f"{first.severity} at {first.path}: {first.message}")

# %% [markdown]
# ## Repair and ask again

# %%
report = addnorm.doctor(Model(is_fixed=True), ids)
print("wiring:", {block.wiring for block in report.blocks})
print("findings:", [finding.rule for finding in report.findings])

# %% [markdown]
# In continuous integration, `addnorm doctor mypackage.models:build --fail-on error` exits with 1 if
# it finds such an error. [Common mistakes](../docs/explanation/common-mistakes.md) explains this
# one and others.
