"""DLCL: every layer reads a learned combination of all layers below it."""

from typing import Literal

import torch
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.plan import Plan, Site
from addnorm.wirings.base import State, Wiring, empty_parameter, register, weighted_sum


@register(
    Card(
        name="dlcl",
        title="Dynamic linear combination of layers",
        group="dense",
        formula="x_layer = sum_k W[layer, k] * N_k(y_k), y_k = output of layer k, y_0 = embedding",
        paper=(
            "Wang et al., Learning Deep Transformer Models for Machine Translation, 2019, "
            "arXiv 1906.01787"
        ),
        summary="Keeps the outputs of all layers and lets each layer choose among them.",
    )
)
class DLCL(Wiring):
    """A learned lower-triangular mixture over the history of layers.

    x_layer = sum_{k <= layer} W[layer, k] * N_k(y_k)      place=pre, Pre-LN inside the layer
    x_layer = N_layer(sum_{k <= layer} W[layer, k] * y_k)  place=post, Post-LN inside the layer

    y_k: (..., dim) y_0 the embedding, y_k the output of layer k
    W: (depth + 1, depth + 1), lower triangle used; row l starts at 1 / (l + 1), or at 1 (start=one)
    N_k: one norm per layer for the history; N_0 is the identity
    N: one norm per site inside the layers, and with place=pre a final one

    Wang et al. 2019, section 4. The stack's output is the combination of the last row.
    """

    multiplier_place = "none"  # layers are summed with learned weights

    # The released recipe warms up for 16000 steps, four times Vaswani's.
    schedule = "inverse_sqrt(warmup=0.2)"
    num_state_tensors = None

    # NOTE[DIFF]: with place=pre the released code normalizes the last combination once more, though
    # its terms are normalized already, as here; final_norm=False omits it.
    # NOTE[DIFF]: the released code's start "one" also fills the unused upper triangle; it is 0
    # here.
    def __init__(
        self,
        plan: Plan,
        *,
        place: Literal["pre", "post"] = "pre",
        start: Literal["mean", "one"] = "mean",
        final_norm: bool | None = None,
    ) -> None:
        super().__init__(plan)
        if place == "post" and final_norm:
            raise UserError(
                "dlcl(place=post) normalizes its last combination already; leave final_norm out"
            )
        self.place, self.start = place, start
        self.norms = self.make_site_norms()
        self.history_norms = nn.ModuleList(self.make_norm() for _ in range(plan.depth))
        self.final_norm = self.make_norm() if final_norm is not False and place == "pre" else None
        self.weight = empty_parameter(plan.depth + 1, plan.depth + 1)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.weight.copy_(torch.ones_like(self.weight).tril())
            if self.start == "mean":
                self.weight.div_(torch.arange(1, self.plan.depth + 2).unsqueeze(1).to(self.weight))

    def open(self, x: Tensor) -> State:
        return x, x

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        # The first sub-layer of a layer reads the combination of the history.
        x, *history = state
        if site.first:
            x = self._combine_history(tuple(history))
        h = self.norm(site)(x) if self.place == "pre" else x
        return h, (x, *history)

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        # The output of a layer's last sub-layer joins the history.
        x, *history = state
        x = x + branch if self.place == "pre" else self.norm(site)(x + branch)
        if not site.last:
            return x, *history
        output = self.bind(self.history_norms[site.layer])(x) if self.place == "pre" else x
        return x, *history, output

    def close(self, state: State) -> Tensor:
        return self.apply_final_norm(self._combine_history(state[1:]))

    def no_decay(self) -> set[str]:
        return super().no_decay() | {"weight"}

    def _combine_history(self, history: State) -> Tensor:
        row = len(history) - 1
        x = weighted_sum(self.weight[row, : row + 1], history)
        embedding_only = row == 0
        return (
            x
            if self.place == "pre" or embedding_only
            else self.bind(self.history_norms[row - 1])(x)
        )
