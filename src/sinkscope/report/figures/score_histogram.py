"""Figures 3 and 9: how often each score occurs. Figure 3 is one trace, figure 9 several side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sinkscope.report.figures import look
from sinkscope.report.figures.sources import caption as words
from sinkscope.report.figures.sources import named
from sinkscope.sinks import score_histogram

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "figure_3"
TITLE = "How often each score occurs"


def table(traces: Any) -> pd.DataFrame:
    """trace, lower, upper, count: cells (sample, step, layer, head, key) in each bin; the last bin is open above."""
    parts = []
    for name, data in named(traces).items():
        counts = score_histogram(data)
        parts.append(
            pd.DataFrame(
                {
                    "trace": name,
                    "lower": counts["bin"].values,
                    "upper": counts["upper"].values,
                    "count": counts.sum(["sample", "layer"]).values,
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def draw(data: pd.DataFrame) -> Figure:
    """One panel for each trace; counts on a log scale, so that the few sinks are seen."""
    names = list(dict.fromkeys(data["trace"]))
    with look.style():
        wide = look.COLUMN if len(names) == 1 else look.PAGE
        figure, axes = look.sheet(1, len(names), wide, 2.1, sharey=True)
        for place, name in zip(axes[0], names, strict=True):
            part = data[data["trace"] == name]
            filled = part[part["count"] > 0]
            end = max(8.0, float(filled["upper"].max())) if len(filled) else 8.0
            place.bar(
                part["lower"],
                part["count"],
                np.asarray(part["upper"] - part["lower"]),
                align="edge",
                color="#0072B2",
            )
            place.axvline(4, color="#D55E00", linestyle="--", linewidth=0.8)
            place.set(title=name, xlabel="received (uniform = 1)", yscale="log", xlim=(0, end))
        axes[0][0].set_ylabel("cells")
        axes[0][0].annotate(
            "ε = 3", (4, 0.97), xycoords=("data", "axes fraction"), xytext=(3, 0), textcoords="offset points",
            va="top", color="#D55E00", fontsize=7,
        )  # fmt: skip
    return figure


def caption(traces: Any, data: pd.DataFrame) -> str:
    """What is seen, how it was computed, what it does not show."""
    total = {str(name): int(part["count"].sum()) for name, part in data.groupby("trace")}
    cells = ", ".join(f"{name} {count:,}" for name, count in total.items())
    return words(
        "Most keys get about uniform attention (1) or less; the tail to the right are sinks. The dashed line is about where "
        "ε = 3 draws the border.",
        "received attention of every step, layer, head and key, in bins of 0.5; scores beyond 50 count in the last bin. "
        f"Cells: {cells}.",
        "which keys they are, or whether a high score lasts. The paper's figures 3 and 9 have linear counts.",
    )
