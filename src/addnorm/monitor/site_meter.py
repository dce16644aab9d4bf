"""Measurement of one model: finds its sites when its inputs are known, then measures steps."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from addnorm.core.rows import Row
from addnorm.doctor.report import Finding
from addnorm.doctor.trace.errors import describe_exception
from addnorm.measure.monitor import Monitor as StepMeter
from addnorm.monitor.finite_gradients import GradientCheck
from addnorm.monitor.forward_calls import CallObserver, ForwardCall
from addnorm.monitor.nonfinite_source import find_nonfinite
from addnorm.monitor.preparation import PreparedSites, prepare_sites, skip_sites
from addnorm.monitor.row_store import is_main_process
from addnorm.monitor.sites.planned_sites import PlannedSites, is_sharded
from addnorm.monitor.sites.site_plan import Site
from addnorm.monitor.watch_folder import write_facts

LOGGER = logging.getLogger(__package__)
LOG_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
MAX_COPIED_ENTRIES = 1 << 20
"""Entries of a weight that are copied to compute its update ratio."""


class SiteMeter:
    """Sites of a model and the measurements there.

    Args:
        model: the model, without wrappers
        observer: observer of its calls, which knows the inputs
        optimizers: its optimizers, whose weight decay is audited
        audit: whether to apply the doctor's rules when the sites are found
        folder: folder for `monitor.json`
        warn: function that shows a warning
    """

    def __init__(
        self,
        model: nn.Module,
        observer: CallObserver,
        *,
        optimizers: Sequence[Optimizer],
        audit: bool,
        folder: Path | None,
        warn: Callable[[str], None],
    ) -> None:
        self.model, self.observer, self.optimizers = model, observer, optimizers
        self.audit, self.folder, self.warn = audit, folder, warn
        self.findings: tuple[Finding, ...] = ()
        self.notes: list[str] = []
        self._prepared: PreparedSites | None = None
        self._meter: StepMeter | None = None
        self._has_probe = True
        self._gradient_check: GradientCheck | None = None

    @property
    def sites(self) -> tuple[Site, ...]:
        """The sites; empty until they are found."""
        return () if self._prepared is None else self._prepared.plan.sites

    def prepare(self, step: int, *, is_due: bool = True) -> bool:
        """Find the sites if they are not known, or have changed; return whether they are known.

        Args:
            step: number of the step
            is_due: whether the step is measured; others skip the check for changes, which takes
                longer than all else in them
        """
        if self._prepared is not None and not (is_due and self._prepared.has_changed()):
            return True
        if self._prepared is not None:
            self.warn(
                f"model: its weights have other names or shapes since step {step:,}; its sites are "
                "searched again"
            )
            self._prepared = self._meter = None
        call = self.observer.find_example()
        if call is None:
            self.warn(
                "model: expected a call of the model before the first update, got none; pass "
                "example=, or monitor the module that the training loop calls"
            )
            return False
        try:
            self.find_sites(call)
        except Exception as problem:
            if self.observer.is_cut:  # part of a batch may not be a valid input
                self.observer.use_whole_batch()
                return self.observer.example is not None and self.prepare(step, is_due=is_due)
            self.warn(
                "model: it does not run again on the inputs of its first call "
                f"({describe_exception(problem.__cause__ or problem)}); only gradients and updates "
                "of the whole model are measured"
            )
            self._use(skip_sites(self.model, call))
        return True

    def find_sites(self, call: ForwardCall) -> None:
        """Find the sites, and audit the model.

        Raises:
            UserError: the model does not run on the arguments
        """
        prepared = prepare_sites(self.model, call, optimizers=self.optimizers, audit=self.audit)
        self.findings = prepared.findings
        self.notes += [note for note in prepared.plan.notes if note not in self.notes]
        if not prepared.plan.sites:
            reason = prepared.plan.notes[0] if prepared.plan.notes else "unknown reason"
            self.warn(
                f"model: expected residual adds, found none ({reason}); only gradients and updates "
                "of the whole model are measured"
            )
        LOGGER.info("%d residual sites found in %s", len(self.sites), type(self.model).__name__)
        for finding in self.findings:
            LOGGER.log(LOG_LEVELS[finding.severity], "doctor: %s", finding)
        self._use(prepared)
        if self.folder is not None and is_main_process():
            with suppress(OSError):  # the sink of the rows tells it
                write_facts(self.folder, self.model, prepared)

    def _use(self, prepared: PreparedSites) -> None:
        """Measure these sites from now on."""
        self._prepared = prepared
        self._has_probe = bool(prepared.plan.sites)
        self._meter = StepMeter(self.model, sites=prepared.sites, max_entries=MAX_COPIED_ENTRIES)
        if not is_sharded(self.model):
            self._gradient_check = GradientCheck(self.model, prepared.plan)

    def measure(self, step: int, gradient_scale: float | Tensor, *, updates: bool) -> None:
        """Measure a step before its update; if the probe fails, measure without it from now on."""
        prepared, meter = self._prepared, self._meter
        if prepared is None or meter is None:
            return
        options: dict[str, Any] = {"gradient_scale": gradient_scale, "updates": updates}
        if self._has_probe:
            try:
                meter.measure(step, *prepared.example.copy_arguments(), **options)
                self._note_missing(prepared.sites)
                return
            except Exception as problem:
                self._has_probe = False
                self.warn(
                    f"the forward pass of the monitor failed at step {step:,} "
                    f"({describe_exception(problem)}); sites are not measured any more, gradients "
                    "and updates are"
                )
        meter.measure(step, **options)

    def finish(self) -> list[Row]:
        """Return the rows of the step after its update."""
        rows = [] if self._meter is None else self._meter.after_update()
        total = next((row["value"] for row in rows if row["name"] == "gradient_norm"), 1.0)
        if total == 0 and not self.optimizers:
            self.warn(
                "gradients: expected those of the update, got none; pass the optimizer, or call "
                "monitor.step before zero_grad"
            )
            rows = [row for row in rows if row["name"] != "gradient_norm"]
        return [{"site": None, **row} for row in rows]

    def has_finite_gradients(self) -> bool:
        """Return whether a few gradients at both ends of the model are finite."""
        return self._gradient_check is None or self._gradient_check.is_finite()

    def find_nonfinite(self, step: int) -> list[Row]:
        """Return the row of the first non-finite value of the step, if it is found."""
        if self._prepared is None:
            return []
        source = find_nonfinite(self.model, self._prepared.plan, self.observer.step_calls)
        return [] if source is None else [source.to_row(step)]

    def _note_missing(self, sites: PlannedSites) -> None:
        problems = list(sites.problems)
        if sites.missing:
            names = ", ".join(self.sites[index].label for index in sorted(sites.missing)[:3])
            problems.append(
                f"{len(sites.missing)} of {len(self.sites)} sites were not met in the forward pass "
                f"of the monitor, the first {names}; they have no rows"
            )
        for problem in problems:
            if problem not in self.notes:
                self.notes.append(problem)
                self.warn(problem)
