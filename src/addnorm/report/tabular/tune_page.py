"""The page of `addnorm tune`: trials, their parameters, and the fit of the best one."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from addnorm.report.charts.base import VALUES, assemble_chart, named_data
from addnorm.report.html.page import Chart, Headline, Note, Section, Table, render_page, write_page
from addnorm.report.table_page import PAGE_FILE, fit_sections
from addnorm.tabular.fit_run import FitResult
from addnorm.tabular.search.search import TabularSearch
from addnorm.tabular.search.trials import COMPLETE, FAILED, PRUNED, Trial

MAX_TABLE_ROWS = 15
"""Trials in the table of the best ones."""
MAX_CURVES = 60
"""Trials in the chart of validation losses."""
STATE_COLORS = {"best": "var(--orange)", COMPLETE: "var(--blue)", PRUNED: "var(--quiet)"}
LOG_RATIO = 10.0
"""Ratio of the largest to the smallest value of a parameter from which on its axis is log."""


def write_tune_report(folder: str | Path, search: TabularSearch, fitted: FitResult) -> Path:
    """Write `report.html` into the output folder of `addnorm tune`."""
    return write_page(Path(folder) / PAGE_FILE, render_tune_page(search, fitted))


def render_tune_page(search: TabularSearch, fitted: FitResult) -> str:
    """Return the page of a search as HTML."""
    label, _ = _metric(search)
    default, best = search.trials_[0], search.trials_[search.best_index_]
    states = [trial.state for trial in search.trials_]
    return render_page(
        f"Search for {fitted.config.target} of {Path(fitted.config.table).name}",
        about=f"{search.searcher} search over {len(_names(search.trials_))} parameters of "
        f"model={search.estimator.model}, {search.n_splits_} splits of {fitted.trained:,} rows",
        key_numbers={
            f"{label} of the best": _format_score(search, best),
            f"{label} as given": _format_score(search, default),
            "trials": f"{len(states):,}",
            "pruned": f"{states.count(PRUNED):,}",
            "minutes": f"{sum(sum(each.seconds) for each in search.trials_) / 60:.1f}",
        },
        sections=[*_search_sections(search), *fit_sections(fitted)],
    )


def _search_sections(search: TabularSearch) -> Iterator[Section]:
    yield Section("Search", [_headline(search)])
    yield Section("Trials", [_progress_chart(search), _loss_chart(search), _table(search)])
    charts = [_parameter_chart(search, name) for name in _names(search.trials_)]
    if charts:
        yield Section(
            "Parameters",
            charts,
            about="Score of each complete trial over one parameter. The other parameters differ, "
            "too, so that a chart shows no effect of one parameter alone.",
        )


def _headline(search: TabularSearch) -> Headline:
    label, sign = _metric(search)
    default, best = search.trials_[0], search.trials_[search.best_index_]
    direction = "lower" if sign < 0 else "higher"
    if best.number == 0 or not best.params:
        large = f"No trial was better than the parameters as given: {label} " + _format_score(
            search, default
        )
    else:
        large = (
            f"Trial {best.number} is best: {label} {_format_score(search, best)} instead of "
            f"{_format_score(search, default)} as given ({direction} is better)."
        )
    failed = [each for each in search.trials_ if each.state == FAILED]
    small = [
        "The score of the best of many trials is optimistic; the test rows below were not used in "
        "the search."
    ]
    if failed:
        small.append(f"{len(failed)} trials failed, the first with: {failed[0].error}")
    return Headline([large], small)


def _progress_chart(search: TabularSearch) -> Chart:
    label, sign = _metric(search)
    trials = [each for each in search.trials_ if each.state != FAILED and each.scores]
    rows, best_rows, best = [], [], -math.inf
    for each in trials:
        score = sum(each.scores) / len(each.scores)
        is_best = each.number == search.best_index_
        state = "best" if is_best else each.state
        rows.append({"trial": each.number, "score": sign * score, "state": state})
        if each.state == COMPLETE and each.fraction == max(x.fraction for x in trials):
            best = max(best, score)
            best_rows.append({"trial": each.number, "score": sign * best})
    x = alt.X("trial:Q", title="trial", axis=alt.Axis(tickMinStep=1, format="d"))
    y = alt.Y("score:Q", title=label, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5))
    line = (
        alt.Chart(named_data("best"))
        .mark_line(interpolate="step-after", color="var(--orange)", aria=False)
        .encode(x=x, y=y)
    )
    points = (
        alt.Chart(named_data(VALUES))
        .mark_circle(size=60, aria=False, opacity=1)
        .encode(x=x, y=y, color=_state_color(rows), tooltip=_tooltips(label, "trial:Q"))
    )
    note = "The line is the best complete trial so far; a pruned trial has the mean of the splits "
    return assemble_chart(
        "Score over trials",
        [line, points],
        notes=[note + "that it finished."],
        values={VALUES: rows, "best": best_rows},
        wide=True,
    )


def _loss_chart(search: TabularSearch) -> Chart | Note:
    trials = [each for each in search.trials_ if each.losses][-MAX_CURVES:]
    if not trials:
        return Note("Trials had no validation rows, so that none was pruned within a split.")
    rows = [
        {
            "trial": f"trial {each.number}",
            "epoch": epoch,
            "loss": loss,
            "state": "best" if each.number == search.best_index_ else each.state,
        }
        for each in trials
        for epoch, loss in enumerate(each.losses, start=1)
    ]
    lines = (
        alt.Chart(named_data(VALUES))
        .mark_line(strokeWidth=1.4, opacity=0.8, aria=False)
        .encode(
            x=alt.X("epoch:Q", axis=alt.Axis(tickMinStep=1, format="d")),
            y=alt.Y("loss:Q", title="validation loss", scale=alt.Scale(zero=False)),
            detail="trial:N",
            color=_state_color(rows),
            tooltip=[alt.Tooltip("trial:N"), alt.Tooltip("loss:Q", format=".4g")],
        )
    )
    return assemble_chart(
        "Validation loss in the first split",
        [lines],
        notes=["A trial ends where it was pruned or stopped improving."],
        values={VALUES: rows},
    )


def _table(search: TabularSearch) -> Table:
    ranks = search.cv_results_["rank_test_score"]
    complete = [each for each in search.trials_ if each.state == COMPLETE]
    order = sorted(complete, key=lambda each: (ranks[each.number], each.number))[:MAX_TABLE_ROWS]
    names = _names(search.trials_)
    label, _ = _metric(search)
    rows = [
        (
            str(each.number),
            _format_score(search, each),
            f"{sum(each.seconds):.1f}",
            *(_format_value(each.params.get(name, "as given")) for name in names),
        )
        for each in order
    ]
    return Table("Best trials", ("trial", label, "seconds", *names), rows, wide=True)


def _parameter_chart(search: TabularSearch, name: str) -> Chart:
    label, sign = _metric(search)
    rows = [
        {
            "value": each.params[name],
            "score": sign * each.score,
            "trial": each.number,
            "state": "best" if each.number == search.best_index_ else each.state,
        }
        for each in search.trials_
        if each.state == COMPLETE and name in each.params
    ]
    values = [row["value"] for row in rows]
    numbers = [x for x in values if isinstance(x, int | float) and not isinstance(x, bool)]
    if numbers and len(numbers) == len(values):
        positive = [x for x in numbers if x > 0]
        is_log = len(positive) == len(numbers) and max(positive) / min(positive) >= LOG_RATIO
        # A power keeps small numbers apart like a log axis, and has a place for 0.
        is_power = not is_log and positive and max(positive) / min(positive) >= LOG_RATIO
        scale = (
            alt.Scale(type="log", nice=False, padding=12)
            if is_log
            else alt.Scale(type="pow", exponent=0.25, nice=False, padding=12)
            if is_power
            else alt.Scale(zero=False, padding=12)
        )
        axis = alt.Axis(format="~g", tickCount=4, labelOverlap=True)
        x = alt.X("value:Q", title=name, scale=scale, axis=axis)
    else:
        rows = [row | {"value": str(row["value"])} for row in rows]
        x = alt.X("value:N", title=name, axis=alt.Axis(labelAngle=0, labelLimit=110))
    y = alt.Y("score:Q", title=label, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5))
    points = (
        alt.Chart(named_data(VALUES))
        .mark_circle(size=60, aria=False, opacity=0.9)
        .encode(
            x=x,
            y=y,
            color=_state_color(rows, legend=False),
            tooltip=[*_tooltips(label, "trial:Q"), alt.Tooltip("value:N", title=name)],
        )
    )
    return assemble_chart(name, [points], notes=[], values={VALUES: rows})


def _state_color(rows: Sequence[dict[str, Any]], *, legend: bool = True) -> alt.Color:
    present = {row["state"] for row in rows}
    states = [each for each in STATE_COLORS if each in present]
    colors = [STATE_COLORS[each] for each in states]
    key = alt.Legend(title=None) if legend and len(states) > 1 else None
    return alt.Color("state:N", scale=alt.Scale(domain=states, range=colors), legend=key)


def _tooltips(label: str, trial: str) -> list[alt.Tooltip]:
    return [
        alt.Tooltip(trial, title="trial", format="d"),
        alt.Tooltip("score:Q", title=label, format=".5g"),
        alt.Tooltip("state:N"),
    ]


def _names(trials: Sequence[Trial]) -> list[str]:
    return list(dict.fromkeys(name for each in trials for name in each.params))


def _metric(search: TabularSearch) -> tuple[str, int]:
    """Return the display name of the metric, and -1 if its scores are negative losses."""
    name = search.metric_name_
    sign = -1 if name.startswith("neg_") else 1
    label = name.removeprefix("neg_").replace("_", " ").replace("root mean squared error", "RMSE")
    return label, sign


def _format_score(search: TabularSearch, trial: Trial) -> str:
    return f"{_metric(search)[1] * trial.score:.4g}"


def _format_value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
