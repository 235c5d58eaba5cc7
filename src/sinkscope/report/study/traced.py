"""Sections on the traces: what sinks are made of, whether they move, and their anatomy layer by layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sinkscope.report.study.exemplars import drawn
from sinkscope.report.study.markup import Safe, details, join, link, panels, table, tag
from sinkscope.report.study.numbers import missing, number, valued, within
from sinkscope.report.study.source import Row, StudySource
from sinkscope.report.study.svg import Plot, key
from sinkscope.report.study.words import captioned, colour, note, section, short
from sinkscope.study.paper import published_tokens

LOW, HIGH = 1 / 16, 16.0
TOP = 5
KINDS = (
    ("static", "s1", "fixed keys hold the strongest sink for at least 90 % of the steps"),
    ("moving", "s2", "the strongest sink leaves its place and is found at another"),
    ("flickering", "s5", "sinks come and go without a place of their own"),
    ("vanishing", "s3", "none at the end"),
    ("emerging", "s4", "none at the start, there at the end"),
    ("intermittent", "s6", "keeps its place but not its presence"),
)
LEAST_LABEL = 0.1
Measured = dict[str, tuple[int, Row]]
"""Measure → (row number, row) of the table `sinks`."""
BY_LAYER = (
    ("sinks_per_head", "sinks per head", ".2f"), ("drains_per_head", "drains", ".2f"), ("hubs_per_head", "hubs", ".2f"),
    ("distinct_positions", "distinct positions", ".1f"), ("heads_without", "heads without", ".1%"),
    ("absorbed", "absorbed", ".1%"),
)  # fmt: skip
Layers = dict[str, list[tuple[int, Row]]]


def composition(source: StudySource) -> Safe | None:
    """The section; None without traces."""
    measures = source.measures("composition")
    if not measures:
        return None
    # Measures are "newline: frequency", "newline: enrichment", and so on.
    kinds = list(dict.fromkeys(name.partition(": ")[0] for rows in measures.values() for name in rows))
    pictures = panels(
        (model, _enrichment(model, rows, kinds, colour(model, source.models)))
        for model, rows in measures.items()
    )
    picture = captioned(pictures, "composition", link("tables/sinks.csv"))
    shares = table(
        note("frequencies"),
        ("kind of token", *measures),
        [[kind, *(_both(rows, kind) for rows in measures.values())] for kind in kinds],
    )
    return section("composition", picture, shares, _tokens(source))


def _both(rows: Measured, kind: str) -> Safe | str:
    """Frequency and enrichment of a kind of token."""
    parts = []
    if f"{kind}: frequency" in rows:
        at, row = rows[f"{kind}: frequency"]
        parts.append(valued(row, "sinks", at, ".1%"))
    if f"{kind}: enrichment" in rows:
        at, row = rows[f"{kind}: enrichment"]
        parts.append(tag("small", valued(row, "sinks", at, ".2f"), "×"))
    return tag("span", *parts) if parts else "–"


def _enrichment(model: str, rows: Measured, kinds: Sequence[str], series: str) -> Safe:
    plot = Plot(
        f"{model}: enrichment of token kinds among sinks", 440, 24 * len(kinds) + 44, (LOW, HIGH),
        (len(kinds) - 0.5, -0.5), margin=(84, 6, 12, 36), log_x=True,
    )  # fmt: skip
    plot.x_axis([(1 / 16, "1/16"), (1 / 4, "¼"), (1, "1"), (4, "4"), (16, "16")], "times chance", grid=True)
    chance = plot.across(1)
    plot.add("line", x1=chance, x2=chance, y1=plot.down.start, y2=plot.down.stop, class_="zero")
    for place, kind in enumerate(kinds):
        plot.text(78, plot.down(place) + 4, kind, "name end")
        at, row = rows.get(f"{kind}: enrichment", (0, {"value": None}))
        if not missing(row["value"]):
            interval = (row["low"], row["high"])
            text = f"{kind}: {row['value']:.2f} ({within(*interval, '.2f') or 'no interval'}) times chance"
            plot.dot(row["value"], place, series, text, f"sinks/{at}/value", interval, flat=True)
    return plot.svg()


def _tokens(source: StudySource) -> Safe | None:
    """The commonest tokens of each model's exemplar, as the paper's table 2 has them."""
    data = source.data("table_2")
    if data is None:
        return None
    columns: dict[str, list[Safe]] = {}
    for model in source.study.models:
        rows = data[data["trace"] == short(model.name)].head(TOP)
        texts = rows["text"].fillna("").astype(str)
        columns[model.name] = [
            _token(text if text.strip() else repr(text), f"{number(share, '.3f')} ({number(more, '.2f')}×)")
            for text, share, more in zip(texts, rows["frequency"], rows["enrichment"], strict=True)
        ]
        if columns[model.name]:
            published = published_tokens(model.source)
            columns[f"{model.name}, in the paper"] = [
                _token(text, f"{share:.3f}") for text, share in published
            ]
    columns = {title: column for title, column in columns.items() if column}
    if not columns:
        return None
    body = [
        [str(i + 1), *(column[i] if i < len(column) else "" for column in columns.values())]
        for i in range(TOP)
    ]
    caption = join([note("tokens"), link("figures/table_2.csv")])
    return table(caption, ("", *columns), body, kind="tokens-table")


def _token(text: str, numbers: str) -> Safe:
    return join([tag("code", text), f" {numbers}"])


# ---- movement


def dynamics(source: StudySource) -> Safe | None:
    """The section; None without traces."""
    measures = source.measures("dynamics")
    if not measures:
        return None
    entries = [(f"area {kind}", "patch", f"{name}: {words}") for name, kind, words in KINDS]
    picture = captioned(
        tag("div", _bars(measures), _bars(measures, narrow=True), key(entries)),
        "dynamics",
        link("tables/sinks.csv"),
    )
    numbers = table(
        "Dynamics, with 95 % intervals over prompts; expected and p of events are from permuted event times",
        ("measure", *measures),
        measure_rows(
            measures,
            lambda unit: "+.2f" if "length" in unit else ".1%" if unit.startswith("share") else ".3g",
        ),
    )
    return section("dynamics", picture, numbers)


def measure_rows(measures: dict[str, Measured], form: Callable[[str], str]) -> list[list[Safe | str]]:
    """One row for each measure of the table `sinks`, one column for each model. form: unit → format of the number."""
    rows: list[list[Safe | str]] = []
    for name in dict.fromkeys(name for of_model in measures.values() for name in of_model):
        places = [of_model.get(name) for of_model in measures.values()]
        units = list(dict.fromkeys(str(place[1]["unit"]) for place in places if place is not None))
        unit = units[0]
        cells = ["–" if place is None else _value(*place, form(unit)) for place in places]
        rows.append([tag("span", name, tag("small", " or ".join(units))), *cells])
    return rows


def _value(at: int, row: Row, form: str) -> Safe:
    note = tag("small", row["note"]) if row["note"] and not missing(row["note"]) else ""
    return join([valued(row, "sinks", at, form), note])


def _bars(measures: dict[str, Measured], narrow: bool = False) -> Safe:
    """One bar for each model; a segment that is wide enough carries its number. narrow: for a phone, names above the bars."""
    pitch, head = (48, 18) if narrow else (34, 0)
    width, left = (350, 4) if narrow else (1000, 170)
    plot = Plot(
        "kinds of heads by model", width, pitch * len(measures) + 30, (0, 1), (0, 1), margin=(left, 4, 14, 26)
    )
    plot.x_axis([(share, f"{share:.0%}") for share in (0, 0.25, 0.5, 0.75, 1)], grid=True)
    for line, (model, rows) in enumerate(measures.items()):
        top, start = 6 + pitch * line + head, 0.0
        plot.text(*((left, top - 5, model, "name") if narrow else (160, top + 16, model, "name end")))
        for name, kind, _ in KINDS:
            at, row = rows.get(f"{name} heads", (0, {"value": None}))
            share = row["value"]
            if missing(share) or share <= 0:
                continue
            low, high = plot.across(start), plot.across(start + share)
            title = tag("title", f"{model}, {name}: {number(share, '.1%')}")
            box = tag("rect", x=low, y=top, width=round(high - low, 2), height=24, class_=f"area {kind}")
            plot.parts.append(
                tag("g", title, box, data_at=f"sinks/{at}/value", data_wide=f"{low:g} {high:g}")
            )
            if share >= LEAST_LABEL:
                plot.text((low + high) / 2, top + 16, number(share, ".0%"), "area-text middle")
            start += share
    return tag("div", plot.svg(), class_="narrow" if narrow else "broad")


# ---- anatomy


def anatomy(source: StudySource) -> Safe | None:
    """The section; None without traces."""
    layers = {model: rows for model in source.models if (rows := source.layers(model))}
    if not layers:
        return None
    return section(
        "anatomy", _measures(source), _depth(layers), drawn(source, "figure_5"), *_by_layer(layers)
    )


def _measures(source: StudySource) -> Safe:
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
    pictures = panels((model, _depth_panel(model, rows, top)) for model, rows in layers.items())
    marks = key([("s1", "circle", "sinks per head"), ("s2", "diamond", "of these, drains")])
    return captioned(tag("div", pictures, marks), "depth", link("tables/depth.csv"))


def _depth_panel(model: str, rows: list[tuple[int, Row]], top: float) -> Safe:
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
    head = ("layer", *(title for _, title, _ in BY_LAYER))
    parts = []
    for model, rows in layers.items():
        body = [
            [str(row["layer"]), *(valued(row, "depth", at, form, stem) for stem, _, form in BY_LAYER)]
            for at, row in rows
        ]
        caption = f"{model}: by layer, with 95 % intervals over prompts"
        parts.append(details(f"{model}, layer by layer", table(caption, head, body)))
    return parts
