"""The section on composition: how often each kind of token is one, and how much more often than chance."""

from __future__ import annotations

from collections.abc import Sequence

from sinkscope.report.study.markup import Safe, join, link, panels, section, table, tag
from sinkscope.report.study.numbers import missing, number, valued, within
from sinkscope.report.study.source import Row, Source
from sinkscope.report.study.svg import Plot
from sinkscope.report.study.words import captioned, colour, note, short
from sinkscope.study.paper import published_tokens

LOW, HIGH = 1 / 16, 16.0
TOP = 5
Measures = dict[str, tuple[int, Row]]


def composition(source: Source) -> Safe | None:
    """The section; None without traces."""
    measures = source.measures("composition")
    if not measures:
        return None
    # Measures are "newline: frequency", "newline: enrichment", and so on.
    kinds = list(dict.fromkeys(name.partition(": ")[0] for rows in measures.values() for name in rows))
    pictures = panels(
        (model, _panel(model, rows, kinds, colour(model, source.models))) for model, rows in measures.items()
    )
    picture = captioned(pictures, "composition", link("tables/sinks.csv"))
    shares = table(
        note("frequencies"),
        ("kind of token", *measures),
        [[kind, *(_both(rows, kind) for rows in measures.values())] for kind in kinds],
    )
    return section("composition", "What they are made of", picture, shares, _tokens(source))


def _both(rows: Measures, kind: str) -> Safe | str:
    """Frequency and enrichment of a kind of token."""
    parts = []
    if f"{kind}: frequency" in rows:
        at, row = rows[f"{kind}: frequency"]
        parts.append(valued(row, "sinks", at, ".1%"))
    if f"{kind}: enrichment" in rows:
        at, row = rows[f"{kind}: enrichment"]
        parts.append(tag("small", valued(row, "sinks", at, ".2f"), "×"))
    return tag("span", *parts) if parts else "–"


def _panel(model: str, rows: Measures, kinds: Sequence[str], series: str) -> Safe:
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


def _tokens(source: Source) -> Safe | None:
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
