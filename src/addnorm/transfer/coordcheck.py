"""Coordinate check: do activations and their changes keep their size as a model grows?

Models of several widths and depths are trained for a few steps on one batch. At every site the size
of the activations and of their change since the start is measured. If the rule of a scale is right,
both are the same for all sizes: curves over width and depth are flat.

Yang et al. 2022, arXiv 2203.03466, appendix D.1.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.rows import Row
from addnorm.transfer.recording import OUTPUT, difference, record_sites, rms
from addnorm.transfer.setup import Batch, make_batch, make_loss, make_optimizer
from addnorm.transfer.slopes import TOLERANCE, Slope, Verdict, judge

AXES = ("width", "depth")
MEASURES = ("activation", "update")
MAX_STEPS = 10_000


@dataclass(frozen=True)
class CoordinateCheck:
    """Sizes of activations and updates of models of several widths and depths."""

    rows: tuple[Row, ...]
    """One row per seed, model, step, site and measure: axis, width, depth, seed, step, site,
    measure, value."""
    losses: tuple[Row, ...]
    """The loss of every model before every step: axis, width, depth, seed, step, value."""
    steps: int
    tolerance: float = TOLERANCE

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that vary: width, depth or both."""
        return tuple(axis for axis in AXES if any(row["axis"] == axis for row in self.rows))

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites, in the order of the forward pass."""
        return tuple(dict.fromkeys(str(row["site"]) for row in self.rows))

    def points(
        self, site: str, *, axis: str, measure: str = "update", step: int | None = None
    ) -> list[tuple[float, float]]:
        """Return (width or depth, value) of all seeds at one step; the last if None."""
        step = self.steps if step is None else step
        wanted = {"site": site, "axis": axis, "measure": measure, "step": step}
        return [
            (float(row[axis]), float(row["value"]))
            for row in self.rows
            if all(row[name] == value for name, value in wanted.items())
        ]

    def slope(
        self, site: str, *, axis: str = "width", measure: str = "update", step: int | None = None
    ) -> Slope | None:
        """Return the slope of a site over an axis; None if values are zero or not finite."""
        return Slope.fit(self.points(site, axis=axis, measure=measure, step=step))

    @property
    def measure(self) -> str:
        """What is judged: updates, or activations if no step was taken."""
        return "update" if self.steps else "activation"

    def verdict(self, site: str, *, axis: str = "width") -> Verdict:
        """Return whether a site is flat after the last step, grows or falls; see `measure`."""
        return judge(self.points(site, axis=axis, measure=self.measure), self.tolerance)

    @property
    def ok(self) -> bool:
        """Whether no site grows or falls and all values are finite.

        Logits may fall with the width: under muP they settle late (Yang et al. 2022, appendix D).
        """
        return not any(
            verdict in ("grows", "not finite") or (verdict == "falls" and not _may_fall(site, axis))
            for axis in self.axes
            for site in self.sites
            for verdict in (self.verdict(site, axis=axis),)
        )

    def table(self) -> list[dict[str, Any]]:
        """Return axis, site, verdict and slopes at the start and after the last step."""
        return [
            {
                "axis": axis,
                "site": site,
                "verdict": self.verdict(site, axis=axis),
                "update_slope": _as_dict(self.slope(site, axis=axis)),
                "activation_slope": _as_dict(self.slope(site, axis=axis, measure="activation")),
                "start_slope": _as_dict(self.slope(site, axis=axis, measure="activation", step=0)),
            }
            for axis in self.axes
            for site in self.sites
        ]

    def sentences(self) -> list[str]:
        """Return the result in words, one sentence per axis."""
        texts = []
        for axis in self.axes:
            by_verdict: dict[str, list[str]] = {}
            for site in self.sites:
                by_verdict.setdefault(self.verdict(site, axis=axis), []).append(site)
            bad = [
                name for name in ("grows", "falls", "not finite", "unclear") if name in by_verdict
            ]
            parts = [f"{name}: {', '.join(by_verdict[name])}" for name in bad]
            flat = len(by_verdict.get("flat", ())) + len(by_verdict.get("zero", ()))
            count = f"{flat} of {len(self.sites)} sites"
            what = f"Over {axis}, the {self.measure}s of {count} stay the same"
            texts.append(f"{what}; {'; '.join(parts)}." if parts else f"{what}.")
        return texts

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON data."""
        return {
            "ok": self.ok,
            "steps": self.steps,
            "measure": self.measure,
            "tolerance": self.tolerance,
            "sentences": self.sentences(),
            "sites": self.table(),
            "rows": [_finite(row) for row in self.rows],
            "losses": [_finite(row) for row in self.losses],
        }


def coordcheck(
    build: Callable[..., Any],
    widths: Sequence[int] = (32, 64, 128),
    depths: Sequence[int] = (),
    *,
    batch: Any = None,
    loss: Callable[..., Tensor] | None = None,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | str = "adam",
    lr: float = 0.01,
    steps: int = 10,
    seeds: int = 2,
    tolerance: float = TOLERANCE,
) -> CoordinateCheck:
    """Measure sizes of activations and updates over width and depth.

    Widths vary at the first depth, depths at the first width. All models see the same batch.

    Args:
        build: builder of a model from a width and a depth, or from a width; arguments named width,
            dim or depth are passed by name. The model may have random weights: torch is seeded
            before each call. It may return (model, optimizer).
        widths: widths, at least one
        depths: depths; empty to leave out the depth
        batch: input, tuple of inputs or dictionary of arguments of the model, or a function of the
            width that returns one; tokens for models of addnorm, guessed for others if None
        loss: function of the model's output and the batch; cross entropy of the next token for
            language models of addnorm, distance to a fixed random target for others if None
        optimizer: function from a model to its optimizer, or "adam" or "sgd", with
            `addnorm.scale_groups` for models of addnorm
        lr: learning rate; rather large, as errors show sooner
        steps: number of steps, 0 to 10000
        seeds: number of seeds
        tolerance: largest slope that counts as flat

    >>> def build(width):
    ...     return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))
    >>> check = coordcheck(build, (16, 32, 64), batch=torch.ones(3, 4), steps=2)
    >>> check.sites, check.ok
    (('0', '1', '2', 'output'), False)
    """
    widths, depths = _check_sizes("widths", widths), _check_sizes("depths", depths)
    if not widths:
        raise UserError("widths: expected at least one width, such as (32, 64, 128), got none")
    for name, value, limit in (("steps", steps, MAX_STEPS), ("seeds", seeds, 1000)):
        low = 0 if name == "steps" else 1
        if not isinstance(value, int) or not low <= value <= limit:
            raise UserError(f"{name}: expected an integer from {low} to {limit}, got {value!r}")
    sizes = [("width", width, depths[0] if depths else None) for width in widths]
    sizes = sizes if len(widths) > 1 else []
    sizes += [("depth", widths[0], depth) for depth in depths] if len(depths) > 1 else []
    if not sizes:
        raise UserError("widths, depths: expected at least two of one of them, got one size only")
    rows: list[Row] = []
    losses: list[Row] = []
    for seed in range(seeds):
        done: dict[tuple[int, int | None], tuple[list[Row], list[Row]]] = {}
        for axis, width, depth in sizes:
            if (width, depth) not in done:
                with torch.random.fork_rng():
                    torch.manual_seed(seed)
                    model, own = _call_builder(build, width, depth)
                    inputs = make_batch(batch, model, width)
                    run = own or make_optimizer(optimizer, model, lr)
                    criterion = make_loss(loss, model)
                    done[width, depth] = _train(model, inputs, criterion, run, steps)
            place = {"axis": axis, "width": width, "depth": depth, "seed": seed}
            for source, target in zip(done[width, depth], (rows, losses), strict=True):
                target += [{**place, **row} for row in source]
    return CoordinateCheck(tuple(rows), tuple(losses), steps, tolerance)


def _train(
    model: nn.Module,
    batch: Batch,
    loss: Callable[[Any, Batch], Tensor],
    optimizer: torch.optim.Optimizer,
    steps: int,
) -> tuple[list[Row], list[Row]]:
    """Train on one batch; return the sizes and the losses at every step."""
    rows: list[Row] = []
    losses: list[Row] = []
    model.eval()  # dropout would hide the changes
    start: dict[str, list[Tensor]] = {}
    for step in range(steps + 1):
        with record_sites(model) as record:
            value = loss(batch.call(model), batch)
        if step == 0:
            start = record
        for site, tensors in record.items():
            changes = difference(tensors, start[site])
            for measure, values in zip(MEASURES, (tensors, changes), strict=True):
                if measure == "activation" or step > 0:
                    rows.append(
                        {"step": step, "site": site, "measure": measure, "value": rms(values)}
                    )
        losses.append({"step": step, "value": float(value.detach())})
        if step < steps:
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
    return rows, losses


def _call_builder(
    build: Callable[..., Any], width: int, depth: int | None
) -> tuple[nn.Module, torch.optim.Optimizer | None]:
    """Call a builder with the arguments that it takes."""
    parameters = list(inspect.signature(build).parameters.values())
    accepts_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    names = {each.name for each in parameters}
    width_name = next((name for name in ("width", "dim") if name in names), None)
    values: dict[str, int] = {}
    if width_name is not None or accepts_any:
        values[width_name or "dim"] = width
        if depth is not None and ("depth" in names or accepts_any):
            values["depth"] = depth
        result = build(**values)
    else:
        count = sum(
            each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in parameters
        )
        result = build(*(width, depth)[: 1 if depth is None else max(1, min(2, count))])
    model, own = result if isinstance(result, tuple) else (result, None)
    if not isinstance(model, nn.Module):
        raise UserError(
            f"build: expected a function that returns a torch.nn.Module, got {type(model).__name__}"
        )
    return model, own


def _check_sizes(name: str, values: Any) -> tuple[int, ...]:
    values = (values,) if isinstance(values, int) else tuple(values or ())
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{name}: expected integers from 1, such as (32, 64), got {value!r}")
    return tuple(dict.fromkeys(values))


def _may_fall(site: str, axis: str) -> bool:
    return axis == "width" and (site == OUTPUT or site.endswith("logits"))


def _as_dict(slope: Slope | None) -> dict[str, Any] | None:
    return None if slope is None else _finite(asdict(slope))


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace numbers that JSON does not have by None."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }
