"""Do sinks move: what kinds of heads there are, how long sinks stay, and which way they go."""

from __future__ import annotations

from sinkscope.report.study.markup import Safe, figure, join, link, section, table, tag
from sinkscope.report.study.numbers import missing, number, valued
from sinkscope.report.study.source import Row, Source
from sinkscope.report.study.svg import Plot, key

KINDS = (
    ("static", "s1", "one residence covers at least 90 % of the steps"),
    ("moving", "s2", "the strongest sink changes its place"),
    ("flickering", "s5", "mostly sinks of a single step, without direction"),
    ("vanishing", "s3", "none at the end"),
    ("emerging", "s4", "came later, stayed"),
)
LEAST_LABEL = 0.1


def dynamics(source: Source) -> Safe | None:
    """The section."""
    found = {
        model: {
            str(row["measure"]): (at, row) for at, row in source.traced(model) if row["section"] == "dynamics"
        }
        for model in source.models
    }
    found = {model: rows for model, rows in found.items() if rows}
    if not found:
        return None
    entries = [(f"area {kind}", "patch", f"{name}: {words}") for name, kind, words in KINDS]
    picture = figure(
        tag("div", _bars(found), key(entries)),
        "How the heads that have sinks behave over a generation: the share of the head-steps with a sink that belong to static, "
        "moving, flickering, vanishing and emerging heads.",
        "a residence is a run of steps in which one position is a sink of one head; each head of each trace is put into one "
        "class by rules tested in the order given in docs/analysis.md, and weighted by its steps with a sink.",
        "Why a sink moves, and whether it matters. Classes depend on thresholds (ε = 3, 90 %, a challenger 1.2 times as strong) "
        "that are conventions. Few prompts: see the intervals in the table.",
        link("tables/sinks.csv"),
    )
    names = list(dict.fromkeys(name for rows in found.values() for name in rows))
    body = [[_name(name, found), *(_value(rows.get(name)) for rows in found.values())] for name in names]
    numbers = table(
        "Dynamics, with 95 % intervals over prompts; expected and p of events are from permuted event times",
        ("measure", *found),
        body,
    )
    return section("dynamics", "Do they move?", picture, numbers)


def _name(name: str, found: dict[str, dict[str, tuple[int, Row]]]) -> Safe:
    unit = next(str(rows[name][1]["unit"]) for rows in found.values() if name in rows)
    return tag("span", name, tag("small", unit))


def _value(place: tuple[int, Row] | None) -> Safe | str:
    if place is None:
        return "–"
    at, row = place
    form = ".1%" if str(row["unit"]).startswith("share") and "length" not in str(row["unit"]) else ".3g"
    form = "+.2f" if "length" in str(row["unit"]) else form
    note = tag("small", row["note"]) if row["note"] and not missing(row["note"]) else ""
    return join([valued(row, "sinks", at, form), note])


def _bars(found: dict[str, dict[str, tuple[int, Row]]]) -> Safe:
    """One bar for each model; a segment that is wide enough carries its number."""
    plot = Plot(
        "kinds of heads by model", 1000, 34 * len(found) + 30, (0, 1), (0, 1), margin=(170, 4, 10, 26)
    )
    plot.x_axis([(share, f"{share:.0%}") for share in (0, 0.25, 0.5, 0.75, 1)], grid=True)
    for line, (model, rows) in enumerate(found.items()):
        top, start = 6 + 34 * line, 0.0
        plot.text(160, top + 16, model, "name end")
        for name, kind, _ in KINDS:
            if f"{name} heads" not in rows:
                continue
            at, row = rows[f"{name} heads"]
            if missing(row["value"]) or row["value"] <= 0:
                continue
            left, right = plot.across(start), plot.across(start + row["value"])
            title = tag("title", f"{model}, {name}: {number(row['value'], '.1%')}")
            box = tag("rect", x=left, y=top, width=round(right - left, 2), height=24, class_=f"area {kind}")
            plot.parts.append(
                tag("g", title, box, data_at=f"sinks/{at}/value", data_wide=f"{left:g} {right:g}")
            )
            if row["value"] >= LEAST_LABEL:
                plot.text((left + right) / 2, top + 16, number(row["value"], ".0%"), "area-text middle")
            start += row["value"]
    return plot.svg()
