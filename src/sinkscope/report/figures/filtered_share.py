"""Figure 10: the share of tokens that are not sinks, as ε grows."""

from __future__ import annotations

from typing import Any

import pandas as pd
import xarray as xr

from sinkscope.base.sink_rule import EPSILON
from sinkscope.report.figures import look
from sinkscope.report.figures.sources import by_trace
from sinkscope.sinks import filtered_share


def plot_filtered_share(traces: Any) -> look.PaperFigure:
    """One line for each trace.

    Returns:
        Table: trace, epsilon, share (mean over samples), keys (length of the longest sequence).
    """

    def rows(data: xr.Dataset) -> pd.DataFrame:
        shares = filtered_share(data)
        table = shares.mean("sample").to_dataframe(name="share").reset_index()[["epsilon", "share"]]
        return table.assign(keys=int(shares.attrs["keys"]))

    table = by_trace(traces, rows)
    with look.style():
        figure, axes = look.sheet(1, 1, look.COLUMN, 2.2)
        for mark, (name, part) in zip("os^Dvx*", table.groupby("trace", sort=False), strict=False):
            axes[0][0].plot(part["epsilon"], part["share"], marker=mark, markersize=3, label=name)
        axes[0][0].axvline(EPSILON, color="#7f7f7f", linestyle="--", linewidth=0.7)
        axes[0][0].set(xlabel="ε", ylabel="share of tokens that are not sinks")
        axes[0][0].set_ylim(top=1.005)
        axes[0][0].legend(loc="lower right")
    at = table[table["epsilon"] == EPSILON]
    shares = look.several(f"{row.trace} {row.share:.1%}" for row in at.itertuples())
    lengths = ", ".join(str(keys) for keys in sorted({int(keys) for keys in table["keys"]}))
    return look.finished("figure_10", figure, table, epsilon=EPSILON, shares=shares, lengths=lengths)
