"""What sinks are made of: how often each kind of token is one, and how much more often than chance."""

from __future__ import annotations

from collections.abc import Sequence

from sinkscope.report.study.markup import Safe, figure, join, link, section, table, tag
from sinkscope.report.study.numbers import missing, number, valued
from sinkscope.report.study.source import Row, Source
from sinkscope.report.study.svg import Plot
from sinkscope.report.study.words import colour, short
from sinkscope.study.paper import published_tokens

LOW, HIGH = 1 / 16, 16.0
TOP = 5


def composition(source: Source) -> Safe | None:
    """The section."""
    found = {model: _rows(source, model) for model in source.models}
    found = {model: rows for model, rows in found.items() if rows}
    if not found:
        return None
    names = list(dict.fromkeys(name for rows in found.values() for name in rows))
    panels = [
        tag(
            "div",
            tag("p", model, class_="panel-title"),
            _panel(model, rows, names, colour(model, source.models)),
        )
        for model, rows in found.items()
    ]
    picture = figure(
        tag("div", *panels, class_="panels-row"),
        "Enrichment of each kind of token among the sinks: 1 (dashed) is as often as any other key of the same step and region, "
        "4 is four times as often. Values under 1/16 stand at the edge.",
        "detections (step, layer, head, key) at ε = 3 divided by what chance would give in the same steps and regions; 95 % "
        "intervals are bootstraps over prompts, and too narrow where prompts are fewer than ten.",
        "A cause: a token can be a sink for where it stands and not for what it is. Frequency alone says little: averaged over "
        "the steps of a diffusion model more than a third of all positions are masks.",
        link("tables/sinks.csv"),
    )
    body = [[name, *(_both(rows.get(name)) for rows in found.values())] for name in names]
    shares = table(
        "Frequency (share of the detections) and, below it, enrichment, each with its 95 % interval over prompts",
        ("kind of token", *found),
        body,
    )
    return section("composition", "What they are made of", picture, shares, *_tokens(source))


def _rows(source: Source, model: str) -> dict[str, dict[str, tuple[int, Row]]]:
    """Kind of token → "frequency" and "enrichment" → row of the table."""
    found: dict[str, dict[str, tuple[int, Row]]] = {}
    for at, row in source.traced(model):
        if row["section"] == "composition":
            name, _, what = str(row["measure"]).partition(": ")
            found.setdefault(name, {})[what] = (at, row)
    return found


def _both(rows: dict[str, tuple[int, Row]] | None) -> Safe | str:
    if rows is None:
        return "–"
    parts = []
    for what, form, after in (("frequency", ".1%", ""), ("enrichment", ".2f", "×")):
        if what in rows:
            at, row = rows[what]
            text = join([valued(row, "sinks", at, form), after])
            parts.append(text if what == "frequency" else tag("small", text))
    return tag("span", *parts)


def _panel(model: str, rows: dict[str, dict[str, tuple[int, Row]]], names: Sequence[str], kind: str) -> Safe:
    high = 24 * len(names) + 44
    plot = Plot(
        f"{model}: enrichment of token kinds among sinks", 440, high, (LOW, HIGH), (len(names) - 0.5, -0.5),
        margin=(84, 6, 12, 36), log_x=True,
    )  # fmt: skip
    plot.x_axis([(1 / 16, "1/16"), (1 / 4, "¼"), (1, "1"), (4, "4"), (16, "16")], "times chance", grid=True)
    one = plot.across(1)
    plot.add("line", x1=one, x2=one, y1=plot.down.start, y2=plot.down.stop, class_="zero")
    for place, name in enumerate(names):
        plot.text(78, plot.down(place) + 4, name, "name end")
        if "enrichment" in rows.get(name, {}):
            at, row = rows[name]["enrichment"]
            if not missing(row["value"]):
                text = f"{name}: {row['value']:.2f} ({row['low']:.2f} to {row['high']:.2f}) times chance"
                plot.dot(
                    row["value"], place, kind, text, f"sinks/{at}/value", (row["low"], row["high"]), flat=True
                )
    return plot.svg()


def _tokens(source: Source) -> list[Safe]:
    """The commonest tokens of each model's exemplar, as the paper's table 2 has them."""
    data = source.data("table_2")
    if data is None:
        return []
    columns: dict[str, list[Safe]] = {}
    for model in source.study.models:
        own = data[data["trace"] == short(model.name)].head(TOP)
        if len(own):
            columns[model.name] = [
                join(
                    [
                        tag("code", text if text.strip() else repr(text)),
                        f" {number(share, '.3f')} ({number(more, '.2f')}×)",
                    ]
                )
                for text, share, more in zip(
                    own["text"].astype(str), own["frequency"], own["enrichment"], strict=True
                )
            ]
            beside = published_tokens(model.source)
            if beside:
                columns[f"{model.name}, in the paper"] = [
                    join([tag("code", text), f" {share:.3f}"]) for text, share in beside
                ]
    if not columns:
        return []
    body = [
        [str(i + 1), *(column[i] if i < len(column) else "" for column in columns.values())]
        for i in range(TOP)
    ]
    caption = join(
        ["The five tokens that are sinks most often in each exemplar: share of its detections, and enrichment. One generation "
         "each, so no interval. Data: ", link("figures/table_2.csv")]
    )  # fmt: skip
    return [table(caption, ("", *columns), body, kind="tokens-table")]
