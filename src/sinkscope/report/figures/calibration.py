"""Confidence against right tokens, without and with a policy: wrong, or unsure?"""

from __future__ import annotations

import pandas as pd

from sinkscope.report.figures import look

COLOURS = {"without": "#2b7bba", "masked": "#cf4173"}
BOUNDS = ("right", "right_low", "right_high")


def plot_calibration(table: pd.DataFrame) -> look.PaperFigure:
    """A column for each model and policy of the table `calibration`: right tokens by tenths of confidence, and by thirds of the
    generation, with the mean confidence dashed."""
    columns = ["model", "policy", "run", "third", "low_edge", "positions", "confidence", *BOUNDS]
    shown = table.reindex(columns=columns).reset_index(drop=True)  # studies of before have no thirds
    panels = list(dict.fromkeys(zip(shown["model"], shown["policy"], strict=True)))
    with look.style():
        figure, axes = look.sheet(2, len(panels), look.PAGE, 4.4, sharey=True)
        for (tenths, course), (model, policy) in zip(axes.T, panels, strict=True):
            tenths.plot([0, 1], [0, 1], color="#7f7f7f", linewidth=0.6)
            for run, colour in COLOURS.items():
                own = shown[(shown["model"] == model) & (shown["policy"] == policy) & (shown["run"] == run)]
                by_tenth = own[own["low_edge"].notna()].sort_values("confidence")
                look.interval_line(tenths, by_tenth, "confidence", BOUNDS, colour)
                by_third = own[own["third"].notna()]
                look.interval_line(course, by_third, "third", BOUNDS, colour)
                course.plot(by_third["third"], by_third["confidence"], "--", linewidth=0.8, color=colour)
            tenths.set(title=f"{look.short(str(model))}, {policy}", xlabel="confidence")
            course.set(xlabel="third of the generation", xlim=(0.8, 3.2), xticks=[1, 2, 3])
        for axis in axes[:, 0]:
            axis.set_ylabel("right tokens")
        look.legend(figure, axes[0][0], COLOURS)
    return look.finished("calibration", figure, shown)
