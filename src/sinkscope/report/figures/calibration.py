"""Confidence against right tokens, without and with a policy: wrong, or unsure?"""

from __future__ import annotations

import pandas as pd

from sinkscope.report.figures import look

COLOURS = {"without": "#2b7bba", "masked": "#cf4173"}
BOUNDS = ("right", "right_low", "right_high")


def plot_calibration(table: pd.DataFrame) -> look.PaperFigure:
    """A panel for each model and policy of the table `calibration`: share of right tokens by tenths of confidence."""
    shown = table[["model", "policy", "run", "low_edge", "positions", "confidence", *BOUNDS]].reset_index(drop=True)
    panels = list(dict.fromkeys(zip(shown["model"], shown["policy"], strict=True)))
    with look.style():
        figure, axes = look.sheet(1, len(panels), look.PAGE, 2.4)
        for axis, (model, policy) in zip(axes[0], panels, strict=True):
            own = shown[(shown["model"] == model) & (shown["policy"] == policy) & shown["low_edge"].notna()]
            axis.plot([0, 1], [0, 1], color="#7f7f7f", linewidth=0.6)
            for run, colour in COLOURS.items():
                look.interval_line(axis, own[own["run"] == run].sort_values("confidence"), "confidence", BOUNDS, colour)
            axis.set_title(f"{look.short(str(model))}, {policy}")
            axis.set_xlabel("confidence")
        axes[0][0].set_ylabel("right tokens")
        handles = [axes[0][0].plot([], [], "o", color=colour, label=run)[0] for run, colour in COLOURS.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return look.finished("calibration", figure, shown)
