"""The page of a training run: model, losses, speed, and metrics inside the model."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from addnorm.core.errors import UserError
from addnorm.core.files import check_file, read_json_and_files, read_yaml
from addnorm.report.charts.curves import plot_curve, plot_loss
from addnorm.report.charts.sites import plot_over_steps
from addnorm.report.downsample import finite_points, moving_average
from addnorm.report.format import format_number, plural
from addnorm.report.html.notes import NOT_MEASURED
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
from addnorm.report.metric_sections import METRIC_SECTIONS, MetricSection
from addnorm.report.model_section import build_model_section, find_wiring
from addnorm.report.run_history import EVENT_LABELS, Event, History
from addnorm.tasks import registry as tasks
from addnorm.train.run_folder import ROWS, has_checkpoint, read_config, read_run_rows

PAGE_FILE = "report.html"
MAX_EVENT_ROWS = 200


def write_training_report(folder: Path) -> Path:
    """Write `report.html` into the folder of a run, from its config, arrangement and rows."""
    folder = Path(folder)
    config = _load_config(folder)
    arrangement = _load_arrangement(folder)
    _check_fit_rows(folder)
    history = History.from_rows(read_run_rows(folder))
    return write_page(folder / PAGE_FILE, render_run_page(folder, config, arrangement, history))


def render_run_page(
    folder: Path, config: Mapping[str, Any], arrangement: Mapping[str, Any], history: History
) -> str:
    """Return the page of a run as HTML.

    Args:
        folder: folder of the run, which the page names
        config: content of `config.yaml`
        arrangement: content of `arrangement.json`; empty if there is none
        history: the rows of the run
    """
    events = history.events()
    task = str(config.get("task", "")) or "Training run"
    title = tasks.card(task).title if task in tasks else task
    wiring = find_wiring(config, arrangement)
    metrics = (build_metric_section(section, history, events) for section in METRIC_SECTIONS)
    return render_page(
        f"{title} with {wiring}" if wiring else title,
        about=f"Folder: {folder.resolve()}",
        key_numbers=summarize_numbers(history, events),
        warnings=list(list_warnings(config, history, events)),
        sections=[
            build_model_section(config, arrangement),
            build_loss_section(config, history, events),
            build_speed_section(history),
            *(section for section in metrics if section.parts),
            *build_other_sections(history),
            build_source_section(config, arrangement, history),
        ],
    )


def _load_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.yaml"
    if not path.exists():
        raise UserError(
            f"no run in {folder}: expected a config.yaml; use the output folder of `addnorm train`"
        )
    config = read_yaml(path)
    if has_checkpoint(folder):
        read_config(folder)  # raises if it is not a recipe
    if not isinstance(config, dict):
        raise UserError(f"{path}: expected the keys of a run, got {type(config).__name__}")
    return config


def _load_arrangement(folder: Path) -> dict[str, Any]:
    path = folder / "arrangement.json"
    hint, is_run = "rerun the `addnorm train` command to rewrite it", has_checkpoint(folder)
    content, _ = read_json_and_files(path, hint=hint, required=is_run)
    if content is None:
        if is_run:
            raise UserError(f"{path} is missing; {hint}")
        return {}
    return content if isinstance(content, dict) else {"arrangement": content}


def _check_fit_rows(folder: Path) -> None:
    """Raise `UserError` if the rows of `addnorm fit` have changed since the estimator was saved."""
    path, hint = folder / "estimator.json", "restore it, or fit again"
    data, checksums = read_json_and_files(path, nonfinite=True, hint=hint)
    if data is not None and not isinstance(data, dict):
        raise UserError(f"{path}: expected an object, got {type(data).__name__}; {hint}")
    if ROWS in checksums:
        check_file(folder / ROWS, checksums[ROWS], hint=hint)


def summarize_numbers(history: History, events: Sequence[Event]) -> dict[str, str]:
    """Return the key numbers at the top of the page."""
    numbers = {"steps": f"{history.last_step:,}"}
    if train := finite_points(history.points("loss")):
        numbers["training loss, smoothed"] = f"{moving_average(train)[-1][1]:.4g}"
    if valid := finite_points(history.points("loss", "valid")):
        step, value = min(valid, key=lambda point: (point[1], point[0]))
        numbers[f"best validation loss, step {step:,}"] = f"{value:.4g}"
    if perplexity := finite_points(history.points("perplexity", "valid")):
        numbers["best perplexity"] = f"{min(value for _, value in perplexity):.4g}"
    if accuracy := finite_points(history.points("accuracy", "valid")):
        numbers["best accuracy"] = f"{max(value for _, value in accuracy):.2%}"
    if speed := finite_points(history.points("tokens_per_second")):
        numbers["median tokens per second"] = f"{median(value for _, value in speed):,.0f}"
    if history.rows:
        numbers["spikes"] = f"{sum(event.label.startswith('spike') for event in events):,}"
    return numbers


def list_warnings(
    config: Mapping[str, Any], history: History, events: Sequence[Event]
) -> Iterable[str]:
    """Yield what the page warns about: an unfinished or diverged run."""
    steps = config.get("steps")
    if not history.rows:
        yield "Nothing was measured yet: the run has no rows."
    elif history.outcome in ("", "interrupted"):
        total = f" of {steps:,}" if isinstance(steps, int) else ""
        yield f"Training has not finished: the last row is at step {history.last_step:,}{total}."
    for event in events:
        if event.label == "diverged":
            location = f" ({event.location})" if event.location else ""
            yield f"Diverged at step {event.step:,}{location}."


def build_loss_section(
    config: Mapping[str, Any], history: History, events: Sequence[Event]
) -> Section:
    """Return the section with losses and events."""
    parts: list[Part] = [
        plot_loss(
            history.points("loss"),
            history.points("loss", "valid"),
            events=events,
            title="Training and validation loss",
        )
    ]
    for name, title, axis_title in (
        ("perplexity", "Validation perplexity", "perplexity"),
        ("accuracy", "Validation accuracy", "accuracy"),
    ):
        if points := history.points(name, "valid"):
            parts.append(plot_curve(points, title=title, y=axis_title, name="validation"))
    if events:
        rows = [
            (f"{each.step:,}", each.label, format_number(each.value), each.location)
            for each in events[:MAX_EVENT_ROWS]
        ]
        limit = (
            f", the first {MAX_EVENT_ROWS} of {len(events):,}"
            if len(events) > MAX_EVENT_ROWS
            else ""
        )
        parts.append(Table(f"Events{limit}", ("step", "event", "loss", "location"), rows))
    label_smoothing = (
        " Both losses exclude label smoothing." if config.get("label_smoothing") else ""
    )
    return Section(
        "Loss",
        parts,
        "Drag to pan, Ctrl + wheel or pinch to zoom, double-click to reset, hover for values."
        + label_smoothing,
    )


def build_speed_section(history: History) -> Section:
    """Return the section with the learning rate and the speed."""
    lr, speed = history.points("lr"), history.points("tokens_per_second")
    return Section(
        "Learning rate and speed",
        _merge_missing_notes(
            [
                plot_curve(lr, title="Learning rate", y="learning rate", log=False),
                plot_curve(speed, title="Speed", y="tokens / s", noisy=True),
            ]
        ),
    )


def build_metric_section(
    section: MetricSection, history: History, events: Sequence[Event]
) -> Section:
    """Return the charts of metrics, first of the whole model, then of its sites."""
    parts: list[Part] = []
    for metric in section.metrics:
        points, stacks = history.points(metric.name), history.stacks(metric.name)
        if points:
            chart_title = f"{metric.title}, whole model"
            parts.append(
                plot_curve(
                    points,
                    title=chart_title,
                    y=metric.axis_title,
                    events=events,
                    noisy=True,
                    wide=True,
                )
            )
        for chart in metric.site_charts:
            for stack, rows in stacks.items():
                suffix = f", {stack}" if stack else ""
                chart_title = f"{metric.title} {chart.title}{suffix}"
                parts.append(chart.plot(rows, title=chart_title, y=metric.axis_title))
        if not points and not stacks and not metric.is_optional:
            parts.append(Note(f"{metric.title}{NOT_MEASURED}"))
    parts = _merge_missing_notes(parts)
    has_charts = any(isinstance(part, Chart) for part in parts)
    return Section(section.title, parts, section.note if has_charts else "")


def build_other_sections(history: History) -> list[Section]:
    """Return a section with a chart for each metric that `METRIC_SECTIONS` does not list."""
    known = {"loss", "perplexity", "accuracy", "lr", "tokens_per_second", "ended", *EVENT_LABELS}
    known |= {metric.name for section in METRIC_SECTIONS for metric in section.metrics}
    parts: list[Part] = []
    for name, split, is_per_site in history.names():
        if name in known:
            continue
        title = name.replace("_", " ").capitalize()
        if is_per_site:
            parts += [
                plot_over_steps(
                    rows, title=f"{title} over steps" + (f", {stack}" if stack else ""), y=name
                )
                for stack, rows in history.stacks(name).items()
            ]
        else:
            title = f"{title}, {split}" if split != "train" else title
            parts.append(plot_curve(history.points(name, split), title=title, y=name, name=split))
    return [Section("Other metrics", parts)] if parts else []


def build_source_section(
    config: Mapping[str, Any], arrangement: Mapping[str, Any], history: History
) -> Section:
    """Return the section on the files that the page is made from."""
    sentences = [f"{plural(len(history.rows), 'row')}, up to step {history.last_step:,}."]
    if history.resume_steps:
        steps = ", ".join(f"{step:,}" for step in history.resume_steps[:8])
        sentences.append(
            f"The run was resumed from step {steps}; {plural(history.num_replaced, 'row')} of "
            "repeated steps were replaced."
        )
    if history.num_invalid:
        sentences.append(
            f"{plural(history.num_invalid, 'row')} without a step, name or number were omitted."
        )
    parts: list[Part] = [Note(" ".join(sentences))]
    if config:
        config_text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        parts.append(CollapsibleText("config.yaml", config_text))
    if arrangement:
        arrangement_text = json.dumps(arrangement, indent=2, ensure_ascii=False)
        parts.append(CollapsibleText("arrangement.json", arrangement_text))
    return Section("Source files", parts)


def _merge_missing_notes(parts: Sequence[Part]) -> list[Part]:
    """Join the notes of metrics that were not measured into one."""
    missing = [p.text for p in parts if isinstance(p, Note) and p.text.endswith(NOT_MEASURED)]
    others = [p for p in parts if not (isinstance(p, Note) and p.text in missing)]
    names = "; ".join(text.removesuffix(NOT_MEASURED) for text in missing)
    return [*others, *([Note(names + NOT_MEASURED)] if missing else [])]
