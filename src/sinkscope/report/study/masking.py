"""The section on masking: the paper's table 1 for the models of this study, with intervals and controls.

Below it the larger tables that came with the models: made elsewhere, labelled with date and machine, never mixed with ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sinkscope.report.study.markup import Safe, details, link, panels, table, tag
from sinkscope.report.study.numbers import SHOWN, cited, missing, number, result, setting, within
from sinkscope.report.study.source import Row, StudySource
from sinkscope.report.study.svg import Plot, key
from sinkscope.report.study.words import Dose, captioned, dose, note, policy_words, section
from sinkscope.study.evidence_check import CHECKED
from sinkscope.study.names import control, natural
from sinkscope.study.shipped import Shipped

FOLDED = 6
"""Rows from which on a shipped table is folded."""

SHIPPED_COLUMNS = (
    ("accuracy", "accuracy (Wilson 95 %)", ".3f"), ("difference", "− none (paired 95 %)", "+.3f"),
    ("effect_count", "− count-matched control", "+.3f"), ("effect_mass", "− mass-matched control", "+.3f"),
    ("hidden_share", "attention hidden", ".1%"), ("sinks_hit", "sinks hit", ".1%"),
)  # fmt: skip

SERIES = (
    ("head", "s1", "circle", "each head’s strongest keys hidden"),
    ("count", "s5 hollow", "circle", "control: the same number of random keys"),
    ("mass", "s6 hollow", "diamond", "control: as much attention"),
    ("silence", "s2", "diamond", "silenced instead of hidden"),
    ("layer", "s3", "triangle", "one set per layer"),
    ("model", "s4", "square", "one set for the whole model"),
    ("paper", "s6 hollow", "square", "the paper’s number"),
)
LINED = ("head", "count", "mass")


def masking(source: StudySource) -> Safe | None:
    """The section; None for a study without accuracies."""
    frame = source.frames.get("results")
    remarks = [
        *(remark for remark in source.notes if not remark.startswith(CHECKED)),
        *map(_not_graded, source.manifest.get("not_graded", [])),
    ]
    if frame is None and not source.manifest.get("not_graded"):
        return None
    parts: list[Any] = [tag("p", note("masking"), class_="warning")]
    settings = [] if frame is None else zip(frame["task"], frame["decoding_name"], strict=True)
    for task, decoding in dict.fromkeys(settings):
        rows = list(source.rows("results", task=task, decoding_name=decoding))
        parts += [_wide(source, task, decoding, rows), _curves(source, task, decoding, rows)]
        parts.append(details(f"all numbers of {task} · {decoding}", *_long(source, rows)))
    if remarks:
        parts.append(tag("ul", *(tag("li", remark) for remark in remarks), class_="quiet"))
    return section("masking", *parts, shipped_results(source.shipped))


def _not_graded(cell: Mapping[str, Any]) -> str:
    return (
        f"not graded here: {cell.get('answers')} answers of {cell.get('title')} ({cell.get('why')}); "
        "sinkscope grade FOLDER grades them where programs can be confined"
    )


def _wide(source: StudySource, task: str, decoding: str, rows: list[tuple[int, Row]]) -> Safe:
    """Policies downwards, models to the right, as the paper prints it."""
    models = [model for model in source.models if any(row["model"] == model for _, row in rows)]
    places = {(row["policy"], row["model"]): (at, row) for at, row in rows}
    policies = sorted({row["policy"] for _, row in rows}, key=_order)
    many = sorted({int(row["n"]) for _, row in rows})
    paper = any(not missing(row.get("paper")) for _, row in rows)
    caption = (
        f"{task} · {decoding}: accuracy with its Wilson 95 % interval, n = {' or '.join(map(str, many))} documents a cell"
        + ("; the paper’s number with its standard error beside" if paper else "")
        + ". Controls are means over their draws."
    )
    body = [
        [tag("span", policy, tag("small", policy_words(policy))), *(_accuracy(places.get((policy, model))) for model in models)]
        for policy in policies
    ]  # fmt: skip
    return table(caption, ("policy", *models), body)


def _order(policy: str) -> tuple[bool, list[tuple[int, float, str]], bool, str]:
    """none first, each control after its policy."""
    kind = control(policy)
    return policy != "none", natural(policy if kind is None else kind.like), kind is not None, policy


def _accuracy(place: tuple[int, Row] | None) -> Safe | str:
    if place is None:
        return "–"
    at, row = place
    parts = [
        cited(number(row["accuracy"], ".2f"), "results", at, "accuracy"),
        tag("small", result(row, at, "interval")),
    ]
    if not missing(row.get("paper")):
        text = f"paper {number(row['paper'], '.2f')} ± {number(row['paper_plus_minus'], '.2f')}"
        parts.append(tag("small", cited(text, "results", at, "paper", "paper_plus_minus")))
    return tag("span", *parts)


def _curves(source: StudySource, task: str, decoding: str, rows: list[tuple[int, Row]]) -> Safe | None:
    by_model = [
        (model, "", [(at, row) for at, row in rows if row["model"] == model]) for model in source.models
    ]
    picture = curves(by_model)
    if picture is None:
        return None
    return captioned(picture, "masking", link("tables/results.csv"), task=task, decoding=decoding)


def _long(source: StudySource, rows: list[tuple[int, Row]]) -> list[Safe]:
    """Every column that people read, model by model."""
    parts = []
    for model in source.models:
        own = [(at, row) for at, row in rows if row["model"] == model]
        if own:
            body = [[result(row, at, column) for column, _ in SHOWN] for at, row in own]
            parts.append(table(f"{model}: {setting(own[0][1])}", [title for _, title in SHOWN], body))
    return [*parts, tag("p", note("numbers"), " Data: ", link("tables/results.csv"), ".")]


def shipped_results(shipped: list[Shipped]) -> Safe:
    """The part below the study's own results."""
    parts: list[Any] = [tag("h3", "Shipped with the models, not computed here")]
    if not shipped:
        parts.append(tag("p", "No full-size results ship with these models."))
    by_task: dict[tuple[str, str, Any], list[tuple[int, Row]]] = {}
    for result_set in shipped:
        for row in result_set.rows:
            panel = (f"{row['model']}, {row['task']}", result_set.label, row.get("decoding_name"))
            by_task.setdefault(panel, []).append((0, dict(row)))
    picture = curves(((title, label, rows) for (title, label, _), rows in by_task.items()), numbered=False)
    if picture is not None:
        parts.append(captioned(picture, "shipped"))
    for result_set in shipped:
        made = _shipped_table(result_set)
        title = f"{result_set.rows[0]['model']}: {result_set.label}" if result_set.rows else result_set.label
        parts.append(made if len(result_set.rows) < FOLDED else details(title, made))
    return tag("div", *parts, class_="shipped")


def _shipped_table(shipped: Shipped) -> Safe:
    rows = shipped.rows
    columns = [column for column in SHIPPED_COLUMNS if any(not missing(row.get(column[0])) for row in rows)]
    body = []
    for row in rows:
        draws = row.get("draws")
        several = f", {int(draws)} draws" if not missing(draws) and draws and draws > 1 else ""
        values = [_interval(row, name, form) for name, _, form in columns]
        body.append([row.get("policy"), row.get("task"), f"{row.get('n')}{several}", *values])
    caption = f"{rows[0]['model'] if rows else ''}: {shipped.label}"
    return table(caption, ("policy", "task", "n", *(title for _, title, _ in columns)), body)


def _interval(row: Mapping[str, Any], name: str, form: str) -> str:
    value = row.get(name)
    stem = "" if name == "accuracy" else f"{name}_"
    low, high = row.get(f"{stem}low"), row.get(f"{stem}high")
    text, interval = number(value, form), within(low, high, form)
    return f"{text} ({interval})" if text and interval else text


# ---- degradation curves: accuracy against the number of keys masked --------------------------------


def curves(
    rows_by_title: Iterable[tuple[str, str, list[tuple[int, Row]]]], numbered: bool = True
) -> Safe | None:
    """Panels with one key for all: (title, line below it, rows of one model); None when no row has a dose.

    numbered: row numbers are those of tables/results.
    """
    pictures, used = [], set()
    for title, below, rows in rows_by_title:
        plot, shown = _curve_panel(f"{title} {below}".strip(), rows, numbered)
        if plot is not None:
            used |= shown
            pictures.append((title, tag("div", tag("p", below, class_="quiet") if below else "", plot)))
    if not pictures:
        return None
    entries = [(kind, shape, words) for name, kind, shape, words in SERIES if name in used]
    return tag("div", panels(pictures), key(entries))


def series_of(taken: Dose) -> str | None:
    """The curve that a policy belongs to; None for controls of other scopes, which only the table shows."""
    if taken.match:
        return taken.match if taken.scope == "head" and not taken.silence else None
    if taken.silence:
        return "silence" if taken.scope == "head" else None
    return taken.scope


def _curve_panel(title: str, rows: list[tuple[int, Row]], numbered: bool) -> tuple[Safe | None, set[str]]:
    """The picture of one model and the curves that it has."""
    points: dict[str, list[tuple[int, int, Row]]] = {}
    base = next(((at, row) for at, row in rows if row["policy"] == "none"), None)
    for at, row in rows:
        taken = dose(row["policy"])
        name = None if taken is None else series_of(taken)
        if taken is not None and name is not None:
            points.setdefault(name, []).append((taken.k, at, row))
    if base is None or not points:
        return None, set()
    doses = sorted({0, *(k for series in points.values() for k, _, _ in series)})
    plot = Plot(title, 440, 215, (-0.35, len(doses) - 0.65), (0, 1), margin=(36, 10, 8, 36))
    plot.y_axis([(value, f"{value:g}") for value in (0, 0.25, 0.5, 0.75, 1)])
    plot.x_axis([(place, str(k)) for place, k in enumerate(doses)], "keys masked")
    order = [name for name, *_ in SERIES if name in points]
    # Curves stand a little beside each other, so that their intervals can be told apart.
    shift = {name: 0.1 * (i - (len(order) - 1) / 2) for i, name in enumerate(order)}
    for name, kind, *_ in SERIES:
        if name in LINED and name in points:
            line = sorted(
                (doses.index(k) + shift[name], float(row["accuracy"])) for k, _, row in points[name]
            )
            dashed = "" if name == "head" else " dashed"
            plot.line([(0.0, float(base[1]["accuracy"])), *line], kind.split()[0] + dashed)
    for name, kind, shape, words in SERIES:
        for k, at, row in points.get(name, []):
            _dot(plot, doses.index(k) + shift[name], at if numbered else None, row, kind, shape, words)
    _dot(plot, 0.0, base[0] if numbered else None, base[1], "s1", "circle", "nothing taken away")
    shown = set(points)
    for at, row in rows:
        taken = dose(row["policy"])
        if not missing(row.get("paper")) and (row["policy"] == "none" or taken is not None):
            place = doses.index(0 if taken is None else taken.k) + 0.3
            text = f"paper: {number(row['paper'], '.2f')} ± {number(row['paper_plus_minus'], '.2f')}"
            plot.dot(place, row["paper"], "s6 hollow", text, f"results/{at}/paper", shape="square")
            shown.add("paper")
    return plot.svg(), shown


def _dot(plot: Plot, x: float, at: int | None, row: Row, kind: str, shape: str, words: str) -> None:
    low, high = float(row["low"]), float(row["high"])
    text = f"{row['policy']} ({words}): {row['accuracy']:.3f} ({low:.3f} to {high:.3f}), n = {int(row['n'])}"
    place = None if at is None else f"results/{at}/accuracy"
    plot.dot(x, row["accuracy"], kind, text, place, (low, high), shape=shape)
