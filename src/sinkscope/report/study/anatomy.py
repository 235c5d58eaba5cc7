"""Anatomy: drains or hubs, sinks by layer, and the strength of every head's main sink."""

from __future__ import annotations

import math

import pandas as pd

from sinkscope.report.figures import file_name
from sinkscope.report.study.maps import LEVELS, legend
from sinkscope.report.study.markup import Safe, details, figure, join, link, section, table, tag
from sinkscope.report.study.numbers import missing, valued
from sinkscope.report.study.source import Row, Source
from sinkscope.report.study.svg import Plot, cells, key
from sinkscope.report.study.words import short

COLUMNS = (
    ("sinks_per_head", "sinks per head", ".2f"), ("drains_per_head", "drains", ".2f"), ("hubs_per_head", "hubs", ".2f"),
    ("distinct_positions", "distinct positions", ".1f"), ("heads_without", "heads without", ".1%"),
    ("absorbed", "absorbed", ".1%"),
)  # fmt: skip


def anatomy(source: Source) -> Safe | None:
    """The section."""
    layers = {model: rows for model in source.models if (rows := source.layers(model))}
    if not layers:
        return None
    return section("anatomy", "Anatomy", _kinds(source), _depth(layers), *_heads(source), *_long(layers))


def _kinds(source: Source) -> Safe:
    """Strength and anatomy of the sinks of each model."""
    found = {
        model: {
            str(row["measure"]): (at, row)
            for at, row in source.traced(model)
            if row["section"] in ("where", "strength", "anatomy")
        }
        for model in source.models
    }
    found = {model: rows for model, rows in found.items() if rows}
    names = list(dict.fromkeys(name for rows in found.values() for name in rows))
    body = []
    for name in names:
        unit = next(str(rows[name][1]["unit"]) for rows in found.values() if name in rows)
        form = ".1%" if unit.startswith("share") else ".2f"
        cells_ = [
            valued(rows[name][1], "sinks", rows[name][0], form) if name in rows else "–"
            for rows in found.values()
        ]
        body.append([tag("span", name, tag("small", unit)), *cells_])
    caption = (
        "Where sinks are, how strong, and whether they are drains (value norm under half the median of their head: they take "
        "attention and give little back) or hubs (they may carry content). 95 % intervals over prompts"
    )
    return table(caption, ("measure", *found), body)


def _depth(layers: dict[str, list[tuple[int, Row]]]) -> Safe:
    highest = [
        row[name]
        for rows in layers.values()
        for _, row in rows
        for name in ("sinks_per_head", "sinks_per_head_high")
    ]
    top = max(1.0, math.ceil(2 * max(float(value) for value in highest if not missing(value))) / 2)
    panels = [
        tag("div", tag("p", model, class_="panel-title"), _panel(model, rows, top))
        for model, rows in layers.items()
    ]
    return figure(
        tag(
            "div",
            tag("div", *panels, class_="panels-row"),
            key([("s1", "circle", "sinks per head"), ("s2", "diamond", "of these, drains")]),
        ),
        "Sinks per head and step, from the first layer to the last, and how many of them are drains.",
        "mean over the heads, steps and prompts of the traces, ε = 3; bands are 95 % bootstraps over prompts. A drain’s value "
        "norm is under half the median of its head.",
        "How strong they are, or whether the same keys are sinks in several layers. A hub may carry content, so masking it "
        "removes information: that alone can explain a loss.",
        link("tables/depth.csv"),
    )


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


def _heads(source: Source) -> list[Safe]:
    """Layer × head: how strong each head's main sink is."""
    panels, files = [], []
    for model in source.models:
        for stem in (f"figure_5_{file_name(short(model))}", "figure_5"):
            data = source.data(stem)
            if data is not None and len(data):
                wide = data.pivot_table(index="layer", columns="head", values="main_sink").sort_index()
                panels.append(tag("div", tag("p", model, class_="panel-title"), _grid(model, wide)))
                files.append(link(f"figures/{stem}.csv"))
                break
    if not panels:
        return []
    return [
        figure(
            tag("div", tag("div", *panels, class_="panels-row"), legend()),
            "Strength of the main sink of every head: layers downwards, heads to the right; 1 is uniform attention.",
            "the largest received attention of a key in each step, averaged over the steps of the exemplar.",
            "Whether it is the same key in every step. A maximum over many keys is above 1 even without sinks (about 2 for mild "
            "noise over 100 keys).",
            join(files, ", "),
        )
    ]


def _grid(model: str, frame: pd.DataFrame) -> Safe:
    rows, columns = frame.shape
    plot = Plot(
        f"{model}: strength of each head’s main sink", 440, 230, (-0.5, columns - 0.5), (rows - 0.5, -0.5),
        margin=(36, 6, 8, 34),
    )  # fmt: skip
    left, right, top, bottom = plot.across.start, plot.across.stop, plot.down.stop, plot.down.start
    size = ((right - left) / columns, (bottom - top) / rows)
    plot.parts.append(cells(frame.to_numpy(dtype=float).tolist(), LEVELS, size, left, top))
    plot.add("rect", x=left, y=top, width=right - left, height=bottom - top, class_="frame-line")
    plot.x_axis([(i, str(frame.columns[i])) for i in range(0, columns, max(1, columns // 8))], "head")
    for i in range(0, rows, max(1, rows // 8)):
        plot.text(left - 6, plot.down(i) + 3.5, str(frame.index[i]), "tick end")
    plot.text(0, 0, "layer", "label middle", transform=f"translate(10 {(top + bottom) / 2:g}) rotate(-90)")
    return plot.svg()


def _long(layers: dict[str, list[tuple[int, Row]]]) -> list[Safe]:
    return [
        details(
            f"{model}, layer by layer",
            table(
                f"{model}: by layer, with 95 % intervals over prompts",
                ("layer", *(title for _, title, _ in COLUMNS)),
                [
                    [str(row["layer"]), *(valued(row, "depth", at, form, stem) for stem, _, form in COLUMNS)]
                    for at, row in rows
                ],
            ),
        )
        for model, rows in layers.items()
    ]
