"""DenseFormer: after each layer, a weighted average of everything below."""

from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.core.registry import Count
from addnorm.wirings.base import State, Wiring, empty_parameter, register, weighted_sum


@register(
    Card(
        name="denseformer",
        title="DenseFormer",
        group="dense",
        formula=(
            "x_i = Layer_i(y), Pre-LN inside; y <- sum_j a[i, j] * x_j; at the end y = N_final(y)"
        ),
        paper=(
            "Pagliardini et al., DenseFormer: Enhancing Information Flow in Transformers via Depth "
            "Weighted Averaging, 2024, arXiv 2402.02622"
        ),
        summary="A few hundred scalars let every layer reuse what earlier layers found.",
        reduces_to=(("denseformer", "pre_ln"), ("denseformer(dilation=2, period=2)", "pre_ln")),
        undefined="The paper has no cross-attention; it is wired like every other site here.",
    )
)
class DenseFormer(Wiring):
    """Pre-LN layers with depth-weighted averaging between them.

    x_i = Layer_i(y_{i-1})                    i from 1, Pre-LN inside
    y_i = sum_{j <= i} a[i, j] * x_j          x_0 = y_0 = embedding
    y   = N_final(y_depth)

    x_j: (..., dim) raw output of layer j, before the average
    a: scalar per pair; a[i, i] starts at 1, the others at 0; depth * (depth + 3) / 2 in all
    N: one norm per site, and N_final

    Pagliardini et al. 2024, section 3. dilation=D keeps only j with i - j divisible by D; period=P
    averages only after every P-th layer.
    """

    multiplier_place = "none"  # layers are averaged with learned weights

    # The released recipe: a warm-up of 2 % of the run (config/base.py).
    schedule = "cosine(warmup=0.02)"
    num_state_tensors = None

    def __init__(self, plan: Plan, *, dilation: Count = 1, period: Count = 1) -> None:
        super().__init__(plan)
        self.dilation, self.period = dilation, period
        self.norms = self.make_site_norms()
        self.a = nn.ParameterDict(
            {
                str(layer): empty_parameter(len(self._source_layers(layer)))
                for layer in range(1, plan.depth + 1)
                if layer % period == 0
            }
        )
        self.final_norm = self.make_norm()
        self.reset_parameters()

    def _source_layers(self, layer: int) -> range:
        """Return the layers that an average reads, the newest last."""
        return range(layer % self.dilation, layer + 1, self.dilation)

    def reset_parameters(self) -> None:
        for weights in self.a.values():
            nn.init.zeros_(weights)
            nn.init.ones_(weights[-1:])

    def open(self, x: Tensor) -> State:
        return x, x

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return self.norm(site)(state[0]), state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        # The last sub-layer of a layer stores its output and averages the history.
        x, *history = state
        x = x + branch
        if site.last:
            history = [*history, x]
            layer = site.layer + 1
            if str(layer) in self.a:
                x = weighted_sum(
                    self.a[str(layer)], tuple(history[j] for j in self._source_layers(layer))
                )
        return x, *history

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(state[0])
