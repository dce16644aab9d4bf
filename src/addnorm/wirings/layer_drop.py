"""LayerDrop: whole layers are skipped in training, a batch at a time."""

import torch
from torch import Tensor

from addnorm.core.cards import Card
from addnorm.core.errors import UserError
from addnorm.core.plan import Plan, Site
from addnorm.core.registry import Fraction, InnerCall
from addnorm.wirings.base import State, register
from addnorm.wirings.decorator_base import Decorator


@register(
    Card(
        name="layer_drop",
        title="LayerDrop",
        group="random depth",
        folds_to="pre_ln",
        formula="state <- Layer(state) with probability 1 - rate, else state",
        paper=(
            "Fan, Grave and Joulin, Reducing Transformer Depth on Demand with Structured Dropout, "
            "2019, arXiv 1909.11556"
        ),
        summary="Trains a stack from which layers can be taken away later. A decorator.",
        reduces_to=(("layer_drop(rate=0.0)", "pre_ln"), ("layer_drop(inner=b2t, rate=0.0)", "b2t")),
    )
)
class LayerDrop(Decorator):
    """Skip each layer with a certain probability, drawn once per batch.

    state = keep ? Layer(state) : state      in training; in evaluation every layer happens

    keep: scalar, true with probability 1 - rate, drawn at the layer's first site; no rescaling

    Fan, Grave and Joulin 2019, section 3.2.
    """

    # NOTE[DIFF]: a dropped layer is computed and then discarded, so that the graph does not depend
    # on the draw and can be compiled; the released code does not compute it.
    def __init__(self, plan: Plan, *, inner: InnerCall = "pre_ln", rate: Fraction = 0.1) -> None:
        super().__init__(plan, inner)
        self.rate = rate
        if self.num_state_tensors is None:
            raise UserError(
                f"layer_drop cannot wrap {inner}: it keeps a history, in which a dropped "
                "layer would leave a gap; "
                "drop_path can"
            )

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        # In training, the first site of a layer draws whether to drop it and saves the state.
        if not self.training:
            return self.inner.read(state, site)
        if site.first:
            state = (torch.rand((), device=state[0].device) >= self.rate, *state, *state)
        before, now = self._split_state(state)
        h, now = self.inner.read(now, site)
        return h, (*before, *now)

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        # In training, the last site of a dropped layer restores the saved state.
        if not self.training:
            return self.inner.write(state, site, branch)
        before, now = self._split_state(state)
        now = self.inner.write(now, site, branch)
        if not site.last:
            return (*before, *now)
        keep, *old = before
        return tuple(torch.where(keep, new, kept) for new, kept in zip(now, old, strict=True))

    def trunk(self, state: State) -> Tensor:
        # In the middle of a layer, the state also holds the saved one.
        inside = self._split_state(state)[1] if len(state) != self.num_state_tensors else state
        return self.inner.trunk(inside)

    def _split_state(self, state: State) -> tuple[State, State]:
        """Return (the draw and the state before the layer, the state inside the layer)."""
        before = 1 + (self.num_state_tensors or 0)
        return state[:before], state[before:]
