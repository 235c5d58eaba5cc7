"""The section on movement: the kinds of heads, how long sinks stay, and which way they go."""

from __future__ import annotations

from collections.abc import Callable

from sinkscope.report.study.markup import Safe, join, link, section, table, tag
from sinkscope.report.study.numbers import missing, number, valued
from sinkscope.report.study.source import Row, Source
from sinkscope.report.study.svg import Plot, key
from sinkscope.report.study.words import captioned

KINDS = (
    ("static", "s1", "fixed keys hold the strongest sink for at least 90 % of the steps"),
    ("moving", "s2", "the strongest sink leaves its place and is found at another"),
    ("flickering", "s5", "sinks come and go without a place of their own"),
    ("vanishing", "s3", "none at the end"),
    ("emerging", "s4", "none at the start, there at the end"),
    ("intermittent", "s6", "keeps its place but not its presence"),
)
LEAST_LABEL = 0.1
Measures = dict[str, dict[str, tuple[int, Row]]]


def dynamics(source: Source) -> Safe | None:
    """The section; None without traces."""
    measures = source.measures("dynamics")
    if not measures:
        return None
    entries = [(f"area {kind}", "patch", f"{name}: {words}") for name, kind, words in KINDS]
    picture = captioned(tag("div", _bars(measures), key(entries)), "dynamics", link("tables/sinks.csv"))
    numbers = table(
        "Dynamics, with 95 % intervals over prompts; expected and p of events are from permuted event times",
        ("measure", *measures),
        measure_rows(measures, _form),
    )
    return section("dynamics", "Do they move?", picture, numbers)


def _form(unit: str) -> str:
    return "+.2f" if "length" in unit else ".1%" if unit.startswith("share") else ".3g"


def measure_rows(measures: Measures, form: Callable[[str], str]) -> list[list[Safe | str]]:
    """One row for each measure of the table `sinks`, one column for each model. form: unit → format of the number."""
    rows: list[list[Safe | str]] = []
    for name in dict.fromkeys(name for of_model in measures.values() for name in of_model):
        places = [of_model.get(name) for of_model in measures.values()]
        unit = next(str(place[1]["unit"]) for place in places if place is not None)
        cells = ["–" if place is None else _value(*place, form(unit)) for place in places]
        rows.append([tag("span", name, tag("small", unit)), *cells])
    return rows


def _value(at: int, row: Row, form: str) -> Safe:
    note = tag("small", row["note"]) if row["note"] and not missing(row["note"]) else ""
    return join([valued(row, "sinks", at, form), note])


def _bars(measures: Measures) -> Safe:
    """One bar for each model; a segment that is wide enough carries its number."""
    plot = Plot(
        "kinds of heads by model", 1000, 34 * len(measures) + 30, (0, 1), (0, 1), margin=(170, 4, 10, 26)
    )
    plot.x_axis([(share, f"{share:.0%}") for share in (0, 0.25, 0.5, 0.75, 1)], grid=True)
    for line, (model, rows) in enumerate(measures.items()):
        top, start = 6 + 34 * line, 0.0
        plot.text(160, top + 16, model, "name end")
        for name, kind, _ in KINDS:
            at, row = rows.get(f"{name} heads", (0, {"value": None}))
            share = row["value"]
            if missing(share) or share <= 0:
                continue
            left, right = plot.across(start), plot.across(start + share)
            title = tag("title", f"{model}, {name}: {number(share, '.1%')}")
            box = tag("rect", x=left, y=top, width=round(right - left, 2), height=24, class_=f"area {kind}")
            plot.parts.append(
                tag("g", title, box, data_at=f"sinks/{at}/value", data_wide=f"{left:g} {right:g}")
            )
            if share >= LEAST_LABEL:
                plot.text((left + right) / 2, top + 16, number(share, ".0%"), "area-text middle")
            start += share
    return plot.svg()
