"""Figures 3 and 9: how often each score occurs, in one trace and in several side by side."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from sinkscope.base.sink_rule import EPSILON, PAPER_LENGTH
from sinkscope.report.figures import look
from sinkscope.report.figures.sources import by_trace, named
from sinkscope.sinks import score_histogram
from sinkscope.sinks.judging import Judge


def plot_score_histogram(traces: Any, *, name: str = "figure_3") -> look.PaperFigure:
    """One panel for each trace; counts on a log scale, so that the few sinks are seen.

    Returns:
        Table: trace, lower, upper, count (cells of sample, step, layer, head, key); the last bin is open above. Causal and
        block diffusion models: in percent of a query's attention.
    """
    judges = {name: Judge.of(data) for name, data in named(traces).items()}

    def rows(data: xr.Dataset) -> pd.DataFrame:
        counts = score_histogram(data)
        return pd.DataFrame(
            {"lower": counts["bin"].values, "upper": counts["upper"].values, "count": counts.sum("sample").values}
        )

    table = by_trace(traces, rows)
    parts = {str(trace): of_trace for trace, of_trace in table.groupby("trace", sort=False)}
    with look.style():
        wide = look.COLUMN if len(parts) == 1 else look.PAGE
        figure, axes = look.sheet(1, len(parts), wide, 2.1, sharey=True)
        for place, (trace, of_trace) in zip(axes[0], parts.items(), strict=True):
            filled = of_trace[of_trace["count"] > 0]
            end = max(8.0, float(filled["upper"].max())) if len(filled) else 8.0
            wide_bins = np.asarray(of_trace["upper"] - of_trace["lower"])
            place.bar(of_trace["lower"], of_trace["count"], wide_bins, align="edge", color="#0072B2")
            # Attention that only near queries give tells no sink in a causal model, so its scores are shares and not multiples.
            percent = judges[trace].percent
            border = 100 * EPSILON / PAPER_LENGTH if percent else 1 + EPSILON
            label = "% of a query's attention" if percent else "received (uniform = 1)"
            place.axvline(border, color="#D55E00", linestyle="--", linewidth=0.8)
            place.set(title=trace, xlabel=label, yscale="log", xlim=(0, end))
            place.annotate(
                f"ε = {EPSILON:g}", (border, 0.97), xycoords=("data", "axes fraction"), xytext=(3, 0),
                textcoords="offset points", va="top", color="#D55E00", fontsize=7,
            )  # fmt: skip
        axes[0][0].set_ylabel("cells")
    cells = look.several(f"{trace} {int(of_trace['count'].sum()):,}" for trace, of_trace in parts.items())
    return look.finished(name, figure, table, cells=cells)


plot_score_histograms = partial(plot_score_histogram, name="figure_9")
"""The same of several traces, under its other number."""
