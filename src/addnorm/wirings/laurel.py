"""LAuReL: a learned map of low rank, or learned weights, on the skip."""

from typing import Literal

from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.core.registry import Count
from addnorm.wirings.base import State, Wiring, empty_parameter, register


@register(
    Card(
        name="laurel",
        title="LAuReL",
        formula="x <- f(N(x)) + x + B A x, B = 0 at start; y = N_final(x)",
        paper=(
            "Menghani, Kumar and Kumar, LAuReL: Learned Augmented Residual Layer, 2024, arXiv "
            "2411.07501"
        ),
        summary=(
            "A skip that learns a little: a map of low rank, or two weights; form=gemma3n is "
            "Gemma 3n's."
        ),
        reduces_to=(
            ("laurel", "pre_ln"),
            ("laurel(form=rw)", "pre_ln"),
            ("laurel(form=rw_lr)", "pre_ln"),
        ),
        undefined="The start values of the paper; a and b start at 1 and B at 0 here.",
    )
)
class LAuReL(Wiring):
    """Pre-LN with an augmented skip.

    x_next = f(N(x)) + x + B A x                                       form=lr
    x_next = a * f(N(x)) + b * x                                       form=rw
    x_next = a * f(N(x)) + b * (x + B A x)                             form=rw_lr
    x_next = (x + N_out(f(h)) + h + N_low(B A h)) / sqrt(2), h = N(x)  form=gemma3n, first site
    x_next = x + N_out(f(N(x)))                                        form=gemma3n, other sites
    y      = N_final(x)                                                after the last site

    x, f(x): (..., dim) the stream and the branch
    A: (rank, dim) per site, starts Xavier-uniform
    B: (dim, rank) per site, starts at 0; with form=gemma3n Xavier-uniform
    a, b: scalars per site, start at 1
    N: one norm per site, and N_final; with form=gemma3n one N_out per site and one N_low per layer

    Menghani, Kumar and Kumar 2024, section 2; gemma3n: transformers, modeling_gemma3n.py.
    """

    # NOTE[DIFF]: the variants that read earlier activations (PA) are omitted: denseformer, dlcl and
    # attn_res are wirings of that kind.
    # NOTE[DIFF]: Gemma 3n has this inside AltUp, four streams; AltUp is omitted.
    def __init__(
        self,
        plan: Plan,
        *,
        form: Literal["lr", "rw", "rw_lr", "gemma3n"] = "lr",
        rank: Count = 64,
    ) -> None:
        super().__init__(plan)
        self.form, self.is_gemma = form, form == "gemma3n"
        self.norms = self.make_site_norms()
        low = [site for site in plan.sites if form != "rw" and (site.first or not self.is_gemma)]
        self.down = nn.ParameterDict({str(s.index): empty_parameter(rank, plan.dim) for s in low})
        self.up = nn.ParameterDict({str(s.index): empty_parameter(plan.dim, rank) for s in low})
        weighted = form in ("rw", "rw_lr")
        self.a = empty_parameter(len(plan.sites)) if weighted else None
        self.b = empty_parameter(len(plan.sites)) if weighted else None
        self.outer_norms = self.make_site_norms() if self.is_gemma else None
        norms = {str(s.index): self.make_norm() for s in low if self.is_gemma}
        self.low_norms = nn.ModuleDict(norms)
        self.final_norm = self.make_norm()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for key, down in self.down.items():
            nn.init.xavier_uniform_(down)
            nn.init.xavier_uniform_(self.up[key]) if self.is_gemma else nn.init.zeros_(self.up[key])
        for weight in (self.a, self.b):
            if weight is not None:
                nn.init.ones_(weight)

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        x = state[0]
        h = self.norm(site)(x)
        return h, (x, h) if self.is_gemma and site.first else (x,)

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        return self.add_branch(state, site, self.finish_branch(site, branch))

    def finish_branch(self, site: Site, branch: Tensor) -> Tensor:
        return self.norm(site, "outer_norms")(branch) if self.is_gemma else branch

    def add_branch(self, state: State, site: Site, branch: Tensor) -> State:
        x, *normed = state
        key = str(site.index)
        if normed:
            h = normed[0]
            augmented = h + self.bind(self.low_norms[key])(self._map(h, key))
            return ((x + branch + augmented) * 0.5**0.5,)
        low = self._map(x, key) if key in self.down and not self.is_gemma else None
        if self.a is not None and self.b is not None:
            a, b = self.a[site.index], self.b[site.index]
            x, branch, low = b * x, a * branch, None if low is None else b * low
        return (x + (branch if low is None else branch + low),)

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(state[0])

    def _map(self, x: Tensor, key: str) -> Tensor:
        """Return B A x, a map of low rank."""
        return nn.functional.linear(nn.functional.linear(x, self.down[key]), self.up[key])
