"""NormFormer: Pre-LN with norms after attention and inside the feed-forward, and scaled heads."""

from functools import partial
from typing import Literal

from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Plugs, Shape, Site
from addnorm.wirings.base import State, Wiring, empty_parameter, register


@register(
    Card(
        name="normformer",
        title="NormFormer",
        formula="x <- x + N_a(Attn(N(x))) with scaled heads; x <- x + W_2 N_b(act(W_1 N(x)))",
        paper=(
            "Shleifer, Weston and Ott, NormFormer: Improved Transformer Pretraining with Extra "
            "Normalization, 2021, arXiv 2110.09456"
        ),
        summary=(
            "Evens out Pre-LN's gradients, which are too large at the bottom, too small at the top."
        ),
        undefined="The paper has no cross-attention; it is treated like self-attention here.",
    )
)
class NormFormer(Wiring):
    """Pre-LN with three more operations per layer.

    x_next = x + N_a(Attn(N(x)))            attention, head h of Attn times g_h
    x_next = lambda * x + FFN(N(x))         feed-forward, with N_b after its activation

    x: (..., dim) the stream
    N: one norm per site, and a final one
    N_a: one norm per attention
    N_b: one norm per feed-forward, over its hidden width
    g: (heads) per attention, starts at 1; before the output matrix, or after it (head_scale=post)
    lambda: (dim) per feed-forward, starts at 1; only with res_scale=True

    Shleifer, Weston and Ott 2021, section 2. The authors use res_scale for small models only and a
    larger learning rate than for Pre-LN.
    """

    multiplier_place = "write"

    # The released recipe decays linearly after a short warm-up (fairseq, train_lm.sh).
    schedule = "linear(warmup=0.05)"

    # NOTE[DIFF]: dropout acts on what attention returns, before N_a; after it in fairseq.
    # NOTE[DIFF]: the paper scales heads before the output matrix, as is done here; fairseq scales
    # after it, where the features no longer belong to heads: head_scale=post.
    def __init__(
        self,
        plan: Plan,
        *,
        head_scale: Literal["pre", "post", "none"] = "pre",
        res_scale: bool = False,
    ) -> None:
        super().__init__(plan)
        self.head_scale = head_scale
        self.norms = self.make_site_norms()
        self.outer_norms = nn.ModuleDict(
            {
                str(site.index): self.make_norm()
                for site in plan.sites
                if plan.sublayer_kind(site) != "ffn"
            }
        )
        inside = dict(self.pluggable_sites())
        self.inner_norms = nn.ModuleDict(
            {
                str(site.index): self.make_norm(shape.inner)
                for site, shape in inside.items()
                if plan.sublayer_kind(site) == "ffn"
            }
        )
        self.g = nn.ParameterDict(
            {
                str(site.index): empty_parameter(shape.heads)
                for site, shape in self._sites_with_heads(inside)
            }
        )
        self.res = nn.ParameterDict(
            {
                str(site.index): empty_parameter(plan.dim)
                for site in plan.sites
                if res_scale and plan.sublayer_kind(site) == "ffn"
            }
        )
        self.final_norm = self.make_norm()
        self.reset_parameters()

    def _sites_with_heads(self, inside: dict[Site, Shape]) -> list[tuple[Site, Shape]]:
        has_scale = self.head_scale != "none"
        return [item for item in inside.items() if has_scale and item[1].heads]

    def reset_parameters(self) -> None:
        for scale in (*self.g.values(), *self.res.values()):
            nn.init.ones_(scale)

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return self.norm(site)(state[0]), state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        return self.add_branch(state, site, self.finish_branch(site, branch))

    def finish_branch(self, site: Site, branch: Tensor) -> Tensor:
        # Normalize the output of attention before the add.
        key = str(site.index)
        if key in self.g and self.head_scale == "post":
            branch = branch * self.g[key].repeat_interleave(branch.shape[-1] // len(self.g[key]))
        if key in self.outer_norms:
            branch = self.bind(self.outer_norms[key])(branch)
        return self.scale_residual(branch)

    def add_branch(self, state: State, site: Site, branch: Tensor) -> State:
        key = str(site.index)
        x = self.res[key] * state[0] if key in self.res else state[0]
        return (x + branch,)

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(state[0])

    def plugs(self, site: Site) -> Plugs:
        key = str(site.index)
        scaled = key in self.g and self.head_scale == "pre"
        return Plugs(
            heads=partial(_scale_heads, self.g[key]) if scaled else None,
            inner=self.bind(self.inner_norms[key]) if key in self.inner_norms else None,
        )


def _scale_heads(g: Tensor, heads: Tensor) -> Tensor:
    return heads * g[:, None, None]  # (B, H, L, K)
