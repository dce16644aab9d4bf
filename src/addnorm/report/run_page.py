"""The page of a run: what was trained, how it went, and what was seen inside."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from addnorm.core.errors import UserError
from addnorm.core.rows import read_rows
from addnorm.report.charts.base import Event
from addnorm.report.charts.run import (
    plot_curve,
    plot_heatmap,
    plot_loss,
    plot_over_depth,
    plot_over_steps,
)
from addnorm.report.downsample import finite_points, moving_average
from addnorm.report.html.page import (
    Chart,
    CollapsibleText,
    Note,
    Part,
    Section,
    Table,
    render_page,
    write_page,
)
from addnorm.report.model_section import find_wiring, model_section
from addnorm.report.run_history import EVENT_LABELS, History
from addnorm.tasks import registry as tasks

PAGE_FILE = "report.html"
MetricSpec = tuple[str, str, str, tuple[Any, ...]]
METRIC_SECTIONS: dict[str, list[MetricSpec]] = {
    "Gradients": [("gradient_norm", "Gradient norm", "norm of the gradient", (plot_heatmap,))],
    "The stream": [
        (
            "stream_variance",
            "Variance of the stream",
            "variance",
            (plot_over_depth, plot_over_steps),
        ),
        (
            "dependency",
            "Residual dependency",
            "share of the branch",
            (plot_over_depth, plot_over_steps),
        ),
    ],
    "Updates": [("update_ratio", "Update to weight", "|update| / |weight|", (plot_over_steps,))],
    "Attention": [
        ("attention_entropy", "Entropy of the attention", "entropy (nats)", (plot_over_steps,)),
        ("max_logit", "Largest attention logit", "logit", (plot_over_steps,)),
    ],
}
"""Sections, and in each what was measured: name of the rows, title, unit, how sites are drawn."""
CHART_TITLES = {
    plot_heatmap: "by site and step",
    plot_over_depth: "from site to site",
    plot_over_steps: "over steps",
}
SECTION_NOTES = {
    "Gradients": "A band that darkens from one end of the stack to the other is a "
    "gradient that vanishes on its way.",
    "The stream": "Variance tells whether the stream grows with depth; dependency, how much of "
    "what a site hands on is its own branch rather than what came down the skip.",
    "Updates": "The size of one update beside the size of the weights that it changes.",
    "Attention": "Entropy near zero means attention to a single token; logits that keep growing "
    "come before many divergences.",
}


def write_training_report(folder: Path) -> Path:
    """Write `report.html` into the folder of a run, from its config, arrangement and rows."""
    folder = Path(folder)
    config = _load_config(folder)
    arrangement = _load_arrangement(folder)
    rows = folder / "rows.jsonl"
    history = History.from_rows(read_rows(rows) if rows.is_file() else ())
    return write_page(folder / PAGE_FILE, render_run_page(folder, config, arrangement, history))


def render_run_page(
    folder: Path, config: Mapping[str, Any], arrangement: Mapping[str, Any], history: History
) -> str:
    """The page as text."""
    events = history.events()
    task = str(config.get("task", "")) or "a run"
    title = tasks.card(task).title if task in tasks else task
    wiring = find_wiring(config, arrangement)
    return render_page(
        f"{title} with {wiring}" if wiring else title,
        about=f"The run in {folder.resolve()}",
        figures=_figures(history, events),
        warnings=list(_warnings(config, history, events)),
        sections=[
            model_section(config, arrangement),
            _loss_section(config, history, events),
            _speed_section(history),
            *(
                _metric_section(title, measures, history, events)
                for title, measures in METRIC_SECTIONS.items()
            ),
            *_other_sections(history),
            _source_section(config, arrangement, history),
        ],
    )


def _load_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.yaml"
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"no run at {folder}: it has no config.yaml; wanted a folder that `addnorm train` made"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        raise UserError(f"{path} is not YAML ({' '.join(str(problem).split())})") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} holds no keys; wanted the config of a run")
    return config


def _load_arrangement(folder: Path) -> dict[str, Any]:
    path = folder / "arrangement.json"
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise UserError(f"{path} is not JSON ({problem}); wanted that of a run") from None
    return found if isinstance(found, dict) else {"arrangement": found}


def _figures(history: History, events: Sequence[Event]) -> dict[str, str]:
    """The numbers that one looks for first."""
    figures = {"steps": f"{history.last_step:,}"}
    if train := finite_points(history.points("loss")):
        figures["training loss, smoothed"] = f"{moving_average(train)[-1][1]:.4g}"
    if valid := finite_points(history.points("loss", "valid")):
        step, value = min(valid, key=lambda point: (point[1], point[0]))
        figures[f"best validation loss, step {step:,}"] = f"{value:.4g}"
    if found := finite_points(history.points("perplexity", "valid")):
        figures["best perplexity"] = f"{min(value for _, value in found):.4g}"
    if found := finite_points(history.points("accuracy", "valid")):
        figures["best accuracy"] = f"{max(value for _, value in found):.2%}"
    if speed := finite_points(history.points("tokens_per_second")):
        figures["tokens a second, median"] = f"{median(value for _, value in speed):,.0f}"
    if history.rows:
        figures["spikes"] = f"{sum(event.label.startswith('spike') for event in events):,}"
    return figures


def _warnings(
    config: Mapping[str, Any], history: History, events: Sequence[Event]
) -> Iterable[str]:
    steps = config.get("steps")
    if not history.rows:
        yield "Nothing was measured yet: the run has no rows."
    elif history.outcome in ("", "interrupted"):
        yield f"The rows end at step {history.last_step:,} of {steps:,}: not finished."
    for event in events:
        if event.label == "diverged":
            where = f" ({event.location})" if event.location else ""
            yield f"Diverged at step {event.step:,}{where}."


def _loss_section(config: Mapping[str, Any], history: History, events: Sequence[Event]) -> Section:
    parts: list[Part] = [
        plot_loss(
            history.points("loss"),
            history.points("loss", "valid"),
            events=events,
            title="Loss in training and validation",
        )
    ]
    for name, title, unit in (
        ("perplexity", "Perplexity in validation", "perplexity"),
        ("accuracy", "Accuracy in validation", "share right"),
    ):
        if points := history.points(name, "valid"):
            parts.append(plot_curve(points, title=title, y=unit, name="validation"))
    if events:
        rows = [
            (f"{each.step:,}", each.label, _format_number(each.value), each.location)
            for each in events[:200]
        ]
        more = f", the first 200 of {len(events):,}" if len(events) > 200 else ""
        parts.append(Table(f"What happened{more}", ("step", "what", "loss", "where"), rows))
    smoothed = " Both without label smoothing." if config.get("label_smoothing") else ""
    return Section(
        "Loss",
        parts,
        "Drag to move, Ctrl + wheel or pinch to zoom, double click to go back; hover for numbers."
        + smoothed,
    )


def _speed_section(history: History) -> Section:
    return Section(
        "Learning rate and speed",
        _merge_missing_notes(
            [
                plot_curve(
                    history.points("lr"), title="Learning rate", y="learning rate", log=False
                ),
                plot_curve(
                    history.points("tokens_per_second"), title="Speed", y="tokens / s", noisy=True
                ),
            ]
        ),
    )


def _metric_section(
    title: str,
    measures: Sequence[MetricSpec],
    history: History,
    events: Sequence[Event],
) -> Section:
    """What was measured inside, of the whole model and of sites."""
    parts: list[Part] = []
    for name, what, unit, drawers in measures:
        points, stacks = history.points(name), history.stacks(name)
        if points:
            named = f"{what} of the whole model"
            parts.append(
                plot_curve(points, title=named, y=unit, events=events, noisy=True, wide=True)
            )
        for drawer in drawers:
            for stack, rows in stacks.items():
                named = f"{what} {CHART_TITLES[drawer]}" + (f", {stack}" if stack else "")
                parts.append(drawer(rows, title=named, y=unit))
        if not points and not stacks:
            parts.append(Note(f"{what}: not measured."))
    parts = _merge_missing_notes(parts)
    seen = any(isinstance(part, Chart) for part in parts)
    return Section(title, parts, SECTION_NOTES[title] if seen else "")


def _other_sections(history: History) -> list[Section]:
    """A chart for each measurement that this page does not know."""
    known = {"loss", "perplexity", "accuracy", "lr", "tokens_per_second", "ended", *EVENT_LABELS}
    known |= {name for measures in METRIC_SECTIONS.values() for name, *_ in measures}
    parts: list[Part] = []
    for name, split, of_sites in history.names():
        if name in known:
            continue
        title = name.replace("_", " ").capitalize()
        if of_sites:
            parts += [
                plot_over_steps(
                    rows, title=f"{title} over steps" + (f", {stack}" if stack else ""), y=name
                )
                for stack, rows in history.stacks(name).items()
            ]
        else:
            told = f"{title}, {split}" if split != "train" else title
            parts.append(plot_curve(history.points(name, split), title=told, y=name, name=split))
    return [Section("More measurements", parts)] if parts else []


def _source_section(
    config: Mapping[str, Any], arrangement: Mapping[str, Any], history: History
) -> Section:
    told = [f"{len(history.rows):,} rows, up to step {history.last_step:,}."]
    if history.resume_steps:
        steps = ", ".join(f"{step:,}" for step in history.resume_steps[:8])
        told.append(
            f"The run went on once more from step {steps}; {history.num_replaced:,} rows of what was"
            " done again were replaced."
        )
    if history.num_invalid:
        told.append(f"{history.num_invalid:,} rows have no step, name or number and were left out.")
    dumped = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
    parts: list[Part] = [Note(" ".join(told)), CollapsibleText("config.yaml", dumped)]
    if arrangement:
        parts.append(
            CollapsibleText(
                "arrangement.json", json.dumps(arrangement, indent=2, ensure_ascii=False)
            )
        )
    return Section("Where this comes from", parts)


def _merge_missing_notes(parts: Sequence[Part]) -> list[Part]:
    """What was not measured, in one line."""
    end = ": not measured."
    missing = [p.text for p in parts if isinstance(p, Note) and p.text.endswith(end)]
    others = [p for p in parts if not (isinstance(p, Note) and p.text in missing)]
    names = "; ".join(text.removesuffix(end) for text in missing)
    return [*others, *([Note(names + end)] if missing else [])]


def _format_number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else ""
