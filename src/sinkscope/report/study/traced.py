"""Sections on the traces: where attention goes, what sinks are made of, whether they move, and their anatomy by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from sinkscope.report.figures.look import short
from sinkscope.report.study import charts
from sinkscope.report.study.cells import NONE, Cell, Row, Table, columns_table, value
from sinkscope.report.study.drawing import paper
from sinkscope.report.study.source import StudySource
from sinkscope.sinks import composition as token_table
from sinkscope.sinks.categories import CATEGORIES
from sinkscope.sinks.events import WINDOW
from sinkscope.statistics import Estimate
from sinkscope.study.paper import published_tokens
from sinkscope.study.plugged import Column
from sinkscope.study.shown import estimate
from sinkscope.verdicts import UNKNOWN, Measure
from sinkscope.verdicts.wording import TOKENS, missing, number, titled

TOP = 5
LIMITS = 1 / 16, 16.0
CHANCE = {1 / 16: "1/16", 1 / 4: "¼", 1.0: "1", 4.0: "4", 16.0: "16"}
KINDS = {
    "static": ("s1", "fixed keys hold the strongest sink for at least 90 % of the steps"),
    "moving": ("s2", "the strongest sink leaves its position and is then at another"),
    "flickering": ("soft", "sinks come and go without a position of their own"),
    "vanishing": ("s3", "none at the end"),
    "emerging": ("s4", "none at the start, there at the end"),
    "intermittent": ("ink", "keeps its position but not its presence"),
}
"""Kind of head → colour, and what it means."""
BY_LAYER = (
    Column("layer", "layer"), Column("sinks per head", "sinks_per_head", ".2f"), Column("drains", "drains_per_head", ".2f"),
    Column("hubs", "hubs_per_head", ".2f"), Column("distinct positions", "distinct_positions", ".1f"),
    Column("heads without a sink", "heads_without", ".1%"), Column("attention on sinks", "absorbed", ".1%"),
)  # fmt: skip
DEPTH = {"sinks_per_head": ("sinks per head", "s1", "o"), "drains_per_head": ("of these, drains", "s2", "D")}
Measured = Mapping[str, tuple[int, Row]]


def maps(source: StudySource) -> dict[str, Any] | None:
    """Where attention goes; None without traces."""
    return {"maps": source.heat_maps, "path": paper(source, "figure_7")} if source.exemplars else None


def measured(rows: Measured, measure: Measure, of: str) -> Estimate:
    """A measure of a model; unknown where it has none."""
    row = rows.get(measure.named(of))
    return UNKNOWN if row is None else estimate(row[1])


# ---- what they are made of


def composition(source: StudySource) -> dict[str, Any] | None:
    """The section; None without traces."""
    measures = source.measures("composition")
    if not measures:
        return None
    names = {name for rows in measures.values() for name in rows}
    kinds = [kind for kind in CATEGORIES if Measure.FREQUENCY.named(kind) in names]
    over: dict[str, list[str]] = {}
    drawn, looks = [], {"limits": LIMITS, "ticks": CHANCE, "log": True, "border": 1.0}
    for model, rows in measures.items():
        times = {TOKENS.get(kind, kind): measured(rows, Measure.ENRICHMENT, kind) for kind in kinds}
        title = f"{model}: how often each kind of token is a sink"
        drawn.append((model, charts.lines(times, title=title, label="times chance", **looks)))
        sure = [(one, kind) for kind, one in times.items() if one.known and one.above(1.0)]
        if sure:
            strongest, kind = max(sure)
            over.setdefault(kind, []).append(f"{short(model)} ({number(strongest.value, '.2g')} times)")
    caption = (
        "How often each kind of token is a sink, and how much more often than chance, with 95 % intervals over prompts"
    )
    return {"over": over, "charts": drawn, "shares": measure_table(caption, measures), "tokens": _tokens(source)}


def _tokens(source: StudySource) -> Table | None:
    """The commonest tokens of each model's exemplar, as the paper's table 2 has them."""
    columns: dict[str, list[str]] = {}
    for model in source.study.models:
        if model.name not in source.exemplars:
            continue
        rows = token_table(source.exemplars[model.name], by="token", top=TOP)
        rows = rows[rows["detections"] > 0]
        texts = rows["text"].fillna("").astype(str)
        columns[model.name] = [
            f"{text if text.strip() else repr(text)} {number(share, '.3f')} ({number(more, '.2f')}×)"
            for text, share, more in zip(texts, rows["frequency"], rows["enrichment"], strict=True)
        ]
        published = published_tokens(model.source)
        columns[f"{model.name}, in the paper"] = [f"{text} {share:.3f}" for text, share in published]
    columns = {title: column for title, column in columns.items() if column}
    body = [[str(i + 1), *(column[i] if i < len(column) else "" for column in columns.values())] for i in range(TOP)]
    caption = (
        "The tokens that are sinks most often in each exemplar: share of its detections, and enrichment. One generation each, "
        "so no interval."
    )
    return Table(caption, ("", *columns), body) if columns else None


# ---- movement


def dynamics(source: StudySource) -> dict[str, Any] | None:
    """The section; None without traces."""
    measures = source.measures("dynamics")
    if not measures:
        return None

    shares = {kind: [measured(rows, Measure.KIND, kind).value for rows in measures.values()] for kind in KINDS}
    parts = [(kind, colour, shares[kind]) for kind, (colour, _) in KINDS.items()]
    shifted = f"event times shifted by up to {WINDOW} steps"
    caption = f"Movement, with 95 % intervals over prompts; expected and p of events are from {shifted}"
    title = "Share of the heads and steps with a sink in each kind of head, by model"
    return {
        "chart": charts.shares([short(model) for model in measures], parts, title=title), "kinds": KINDS,
        "table": measure_table(caption, measures),
    }  # fmt: skip


FORMS = {"share": ".1%", "signed": "+.2f", "number": ".3g", "nats": ".3g", "p": ".3f"}
"""Form of a measure → format of its numbers in a table."""
UNITS = {measure.unit: measure.form for measure in reversed(Measure)}


def measure_table(caption: str, measures: Mapping[str, Measured]) -> Table:
    """One row for each measure of the table `sinks`, one column for each model."""
    body = []
    for name in dict.fromkeys(name for rows in measures.values() for name in rows):
        found = [rows.get(name) for rows in measures.values()]
        units = list(dict.fromkeys(str(one[1]["unit"]) for one in found if one is not None))
        form = FORMS.get(UNITS.get(units[0], ""), FORMS["number"])
        cells = [Cell(NONE) if one is None else _with_note(*one, form) for one in found]
        body.append([Cell(titled(name), small=(" or ".join(units),)), *cells])
    return Table(caption, ("measure", *measures), body, "tables/sinks.csv")


def _with_note(at: int, row: Row, form: str) -> Cell:
    cell = value(row, "sinks", at, form)
    return cell._replace(small=(str(row["note"]),)) if row["note"] and not missing(row["note"]) else cell


# ---- anatomy


def anatomy(source: StudySource) -> dict[str, Any] | None:
    """The section; None without traces."""
    layers = {model: rows for model in source.models if (rows := source.traced("depth", model))}
    if not layers:
        return None
    caption = "Where sinks are, how strong, and whether they are drains or hubs; 95 % intervals over prompts"
    highest = [bound for rows in layers.values() for _, row in rows for bound in estimate(row, "sinks_per_head")]
    top = max(1.0, *(bound for bound in highest if math.isfinite(bound)))
    by_layer = "by layer, with 95 % intervals over prompts"
    return {
        "charts": [(model, _depth(model, rows, top)) for model, rows in layers.items()],
        "figure": paper(source, "figure_5"),
        "measures": measure_table(caption, source.measures("where", "strength", "anatomy")),
        "layers": {model: columns_table(f"{model}: {by_layer}", BY_LAYER, rows, "depth") for model, rows in layers.items()},
    }  # fmt: skip


def _depth(model: str, rows: Sequence[tuple[int, Row]], top: float) -> Markup:
    points = {name: [(float(i), estimate(row, name)) for i, (_, row) in enumerate(rows)] for name in DEPTH}
    series = [
        charts.Series(label, [point for point in points[name] if not missing(point[1].value)], colour, marker, line="-")
        for name, (label, colour, marker) in DEPTH.items()
    ]
    every = max(1, math.ceil(len(rows) / 8))
    ticks = {float(i): str(row["layer"]) for i, (_, row) in enumerate(rows) if i % every == 0}
    title = f"{model}: sinks per head by layer"
    return charts.curves(ticks, [one for one in series if one.points], title=title, label="layer", top=top)
