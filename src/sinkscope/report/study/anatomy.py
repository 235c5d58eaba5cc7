"""Anatomy: drains or hubs, sinks by layer, and the strength of every head's main sink."""

from __future__ import annotations

import math

from sinkscope.report.study.dynamics import measure_rows
from sinkscope.report.study.exemplars import drawn
from sinkscope.report.study.markup import Safe, details, link, panels, section, table, tag
from sinkscope.report.study.numbers import missing, valued
from sinkscope.report.study.source import Row, Source
from sinkscope.report.study.svg import Plot, key
from sinkscope.report.study.words import captioned, note

COLUMNS = (
    ("sinks_per_head", "sinks per head", ".2f"), ("drains_per_head", "drains", ".2f"), ("hubs_per_head", "hubs", ".2f"),
    ("distinct_positions", "distinct positions", ".1f"), ("heads_without", "heads without", ".1%"),
    ("absorbed", "absorbed", ".1%"),
)  # fmt: skip
Layers = dict[str, list[tuple[int, Row]]]


def anatomy(source: Source) -> Safe | None:
    """The section; None without traces."""
    layers = {model: rows for model in source.models if (rows := source.layers(model))}
    if not layers:
        return None
    return section(
        "anatomy", "Anatomy", _measures(source), _depth(layers), drawn(source, "figure_5"), *_by_layer(layers)
    )


def _measures(source: Source) -> Safe:
    """Strength and anatomy of the sinks of each model."""
    measures = source.measures("where", "strength", "anatomy")
    rows = measure_rows(measures, lambda unit: ".1%" if unit.startswith("share") else ".2f")
    return table(note("anatomy"), ("measure", *measures), rows)


def _depth(layers: Layers) -> Safe:
    highest = [
        float(row[name])
        for rows in layers.values()
        for _, row in rows
        for name in ("sinks_per_head", "sinks_per_head_high")
        if not missing(row[name])
    ]
    top = max(1.0, math.ceil(2 * max(highest)) / 2)
    pictures = panels((model, _panel(model, rows, top)) for model, rows in layers.items())
    marks = key([("s1", "circle", "sinks per head"), ("s2", "diamond", "of these, drains")])
    return captioned(tag("div", pictures, marks), "depth", link("tables/depth.csv"))


def _panel(model: str, rows: list[tuple[int, Row]], top: float) -> Safe:
    many = len(rows)
    plot = Plot(
        f"{model}: sinks per head by layer", 440, 190, (-0.4, many - 0.6), (0, top), margin=(36, 8, 8, 36)
    )
    plot.y_axis([(value, f"{value:g}") for value in (0, top / 2, top)])
    every = max(1, math.ceil(many / 8))
    plot.x_axis([(i, str(row["layer"])) for i, (_, row) in enumerate(rows) if i % every == 0], "layer")
    for stem, kind, shape in (("sinks_per_head", "s1", "circle"), ("drains_per_head", "s2", "diamond")):
        plot.band([(i, row[f"{stem}_low"], row[f"{stem}_high"]) for i, (_, row) in enumerate(rows)], kind)
        plot.line([(i, row[stem]) for i, (_, row) in enumerate(rows)], kind)
        for i, (at, row) in enumerate(rows):
            if not missing(row[stem]):
                text = f"layer {row['layer']}: {row[stem]:.2f} {stem.replace('_', ' ')}"
                plot.dot(i, row[stem], kind, text, f"depth/{at}/{stem}", shape=shape)
    return plot.svg()


def _by_layer(layers: Layers) -> list[Safe]:
    head = ("layer", *(title for _, title, _ in COLUMNS))
    parts = []
    for model, rows in layers.items():
        body = [
            [str(row["layer"]), *(valued(row, "depth", at, form, stem) for stem, _, form in COLUMNS)]
            for at, row in rows
        ]
        caption = f"{model}: by layer, with 95 % intervals over prompts"
        parts.append(details(f"{model}, layer by layer", table(caption, head, body)))
    return parts
