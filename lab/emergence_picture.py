"""emergence.svg: the curves of emergence.json beside a card, in colours that can be read on light and on dark pages."""

from __future__ import annotations

import io
from typing import Any

from matplotlib import rc_context

from sinkscope.report.figures import look

PANELS = {
    "sink_heads": "share of heads with a sink",
    "max_received": "strongest key, × uniform",
    "value_ratio": "value norm of sinks / median",
    "first_received": "first token, × uniform",
}
# A picture in a README cannot know the page's colours: middle tones reach 3:1 on white and on near-black alike.
COLOURS, GREY = ("#2f86d6", "#d9701a", "#1a9a76", "#c05a9c"), "#808080"


def picture(name: str, points: list[dict[str, Any]]) -> str:
    """The curves by training step, one line for each share t of masked targets (causal models: one line)."""
    levels = list(points[0]["levels"])
    panels = [panel for panel in PANELS if panel in points[0]["levels"][levels[0]]]
    rows = -(-len(panels) // 2)
    with look.style(), rc_context({"svg.fonttype": "none", "font.sans-serif": ["DejaVu Sans"]}):
        figure, axes = look.sheet(rows, min(2, len(panels)), look.PAGE, 2.2 * rows)
        for axis, panel in zip(axes.flat, panels, strict=False):
            for level, colour in zip(levels, COLOURS, strict=False):
                values = [point["levels"][level][panel] for point in points]
                heights = [float("nan") if value is None else value for value in values]
                words = "the whole text" if len(levels) == 1 else f"t = {level}"
                axis.plot([point["step"] for point in points], heights, color=colour, label=words)
            axis.set_title(PANELS[panel], color=GREY)
            axis.set_xscale("symlog", linthresh=1, linscale=0.3)
            axis.set_xticks([0, 1, 10, 100, 1000], ["0", "1", "10", "100", "1,000"])
            axis.minorticks_off()
            axis.set(xlim=(0, points[-1]["step"]), ylim=(0, 1 if panel == "sink_heads" else None))
            axis.set_xlabel("training step", color=GREY)
            axis.tick_params(colors=GREY)
            axis.grid(color=GREY, alpha=0.3)
            axis.spines[:].set_color(GREY)
        lines, words = axes.flat[0].get_legend_handles_labels()
        figure.legend(lines, words, loc="outside upper left", ncols=4, labelcolor=GREY, frameon=False)
        drawing = io.StringIO()
        # No date and no background: the same curves give the same file, on any page.
        about = {"Date": None, "Title": f"{name}: sinks by training step"}
        figure.savefig(drawing, format="svg", transparent=True, metadata=about)
    return drawing.getvalue()
