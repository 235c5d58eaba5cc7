"""emergence.svg: the curves of emergence.json beside a card, in colours that can be read on light and on dark pages."""

from __future__ import annotations

from typing import Any

from sinkscope.report.study.markup import Safe, tag
from sinkscope.report.study.numbers import missing
from sinkscope.report.study.svg import Plot

PANELS = (
    ("sink_heads", "share of heads with a sink"),
    ("max_received", "strongest key, × uniform"),
    ("value_ratio", "value norm of sinks / median"),
    ("first_received", "first token, × uniform"),
)
WIDE, HIGH, ACROSS = 360, 220, 2
TITLE, KEY = 24, 26
FIRST = 0.7
"""The place of step 0 on the logarithmic axis."""
# A picture in a README cannot know the page's colours: middle tones reach 3:1 on white and on near-black alike.
COLOURS = ("#2f86d6", "#d9701a", "#1a9a76", "#c05a9c")
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#808080}.title{font-size:13px;font-weight:600}.middle{text-anchor:middle}"
    ".end{text-anchor:end}.grid{stroke:#808080;stroke-opacity:.3}.line{fill:none;stroke-width:2;stroke-linejoin:round}"
    + "".join(f".c{place}{{stroke:{colour}}}" for place, colour in enumerate(COLOURS))
)


def picture(name: str, points: list[dict[str, Any]]) -> str:
    """The curves by training step, one line for each share t of masked targets (causal models: one line)."""
    levels = list(points[0]["levels"])
    panels = [panel for panel in PANELS if panel[0] in points[0]["levels"][levels[0]]]
    rows = -(-len(panels) // ACROSS)
    wide, high = WIDE * ACROSS, (HIGH + TITLE) * rows + KEY + 8
    parts = [tag("title", f"{name}: sinks by training step"), tag("style", Safe(STYLE))]
    for place, (column, title) in enumerate(panels):
        left, top = WIDE * (place % ACROSS), KEY + (HIGH + TITLE) * (place // ACROSS)
        parts.append(tag("text", title, x=left + 40, y=top + 16, class_="title"))
        plot = _panel(title, column, points, levels)
        parts.append(tag("g", *plot.parts, transform=f"translate({left} {top + TITLE})"))
    for place, level in enumerate(levels):
        x = 40 + 90 * place
        parts.append(tag("line", x1=x, x2=x + 20, y1=13, y2=13, class_=f"line c{place}"))
        words = "the whole text" if len(levels) == 1 else f"t = {level}"
        parts.append(tag("text", words, x=x + 26, y=17))
    drawing = tag(
        "svg", *parts, xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {wide} {high}", width=wide, height=high, role="img"
    )  # fmt: skip
    return f"{drawing}\n"


def _panel(title: str, column: str, points: list[dict[str, Any]], levels: list[str]) -> Plot:
    values = [point["levels"][level][column] for point in points for level in levels]
    last = max(2, points[-1]["step"])
    top = (
        1.0
        if column == "sink_heads"
        else float(int(max(value for value in values if not missing(value))) + 1)
    )
    plot = Plot(title, WIDE, HIGH, (FIRST, last), (0, top), margin=(40, 8, 14, 36), log_x=True)
    plot.y_axis([(value, f"{value:g}") for value in (0, top / 2, top)])
    ticks = [(step, f"{step:,}") for step in (1, 10, 100, 1000) if step <= last]
    plot.x_axis([(FIRST, "0"), *ticks], "training step")
    for place, level in enumerate(levels):
        line = [
            (
                max(FIRST, point["step"]),
                value if (value := point["levels"][level][column]) is not None else float("nan"),
            )
            for point in points
        ]
        plot.line(line, f"c{place}")
    return plot
