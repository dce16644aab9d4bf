# %% [markdown]
# # A new wiring as a plugin
#
# A wiring says what a sub-layer reads and how its output is written back. Registered under a name,
# it works everywhere: in `build`, `compare`, `train`, `draw` and the doctor.

# %%
import torch

import addnorm

# %% [markdown]
# ## The class
#
# `x <- x + f(N(x)) * 2 ** -layer`: each layer writes half as much as the one before. The state is a
# tuple of tensors, here of the stream alone. `read` returns the input of the sub-layer and the
# state, `write` returns the new state, and `close` returns the output of the stack.


# %%
@addnorm.register("halving")
class Halving(addnorm.Wiring):
    """Pre-LN in which each layer writes less than the one before.

    Args:
        factor: factor from layer to layer
    """

    def __init__(self, plan, *, factor: float = 0.5) -> None:
        super().__init__(plan)
        self.factor = factor
        self.norms = self.make_site_norms()  # one norm for each sub-layer
        self.final_norm = self.make_norm()

    def read(self, state, site):
        return self.norms[site.index](state[0]), state

    def write(self, state, site, branch):
        return (state[0] + self.factor**site.layer * branch,)

    def close(self, state):
        return self.final_norm(state[0])


# %% [markdown]
# ## Use it by its name

# %%
model = addnorm.build(
    kind="lm", vocab=100, dim=32, depth=4, heads=2, wiring="halving(factor=0.25)", seed=0
)
logits = model(torch.randint(100, (2, 8)))
print(tuple(logits.shape), model.config.wiring)

# %% [markdown]
# ## Compare it with its reduction
#
# With `factor=1` it must equal Pre-LN. A test of this kind finds most mistakes.

# %%
ids = torch.randint(100, (2, 8))
sizes = {"kind": "lm", "vocab": 100, "dim": 32, "depth": 4, "heads": 2, "seed": 0}
ours = addnorm.build(**sizes, wiring="halving(factor=1.0)").eval()
pre_ln = addnorm.build(**sizes, wiring="pre_ln").eval()
print("equals pre_ln:", torch.equal(ours(ids), pre_ln(ids)))

# %% [markdown]
# In a file `mine.py`, `addnorm compare --plugin mine.py --wiring halving,pre_ln -o out` compares
# the two. The guide to [plugins](../docs/guides/plugins.md) shows how a package provides wirings.
