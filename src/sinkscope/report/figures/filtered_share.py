"""Figure 10: the share of tokens that are not sinks, as ε grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from sinkscope.report.figures import look
from sinkscope.report.figures.sources import caption as words
from sinkscope.report.figures.sources import named
from sinkscope.sink_rule import EPSILON
from sinkscope.sinks import filtered_share

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "figure_10"
TITLE = "Share of tokens that are not sinks, by ε"


def table(traces: Any) -> pd.DataFrame:
    """trace, epsilon, share (mean over samples), keys (length of the longest sequence)."""
    parts = []
    for name, data in named(traces).items():
        found = filtered_share(data)
        part = found.mean("sample").to_dataframe(name="share").reset_index()[["epsilon", "share"]]
        part.insert(0, "trace", name)
        parts.append(part.assign(keys=int(found.attrs["keys"])))
    return pd.concat(parts, ignore_index=True)


def draw(data: pd.DataFrame) -> Figure:
    """One line for each trace."""
    with look.style():
        figure, axes = look.sheet(1, 1, look.COLUMN, 2.2)
        for mark, (name, part) in zip("os^Dvx*", data.groupby("trace", sort=False), strict=False):
            axes[0][0].plot(part["epsilon"], part["share"], marker=mark, markersize=3, label=name)
        axes[0][0].axvline(3, color="#7f7f7f", linestyle="--", linewidth=0.7)
        axes[0][0].set(xlabel="ε", ylabel="share of tokens that are not sinks")
        axes[0][0].set_ylim(top=1.005)
        axes[0][0].legend(loc="lower right")
    return figure


def caption(traces: Any, data: pd.DataFrame) -> str:
    """What is seen, how it was computed, what it does not show."""
    at = data[data["epsilon"] == EPSILON]
    shares = ", ".join(f"{row.trace} {row.share:.1%}" for row in at.itertuples())
    lengths = sorted({int(k) for k in data["keys"]})
    return words(
        f"How many tokens the threshold ε leaves out. At ε = 3 (dashed): {shares}.",
        f"over every step, layer, head and key, mean over generations; sequences of up to {', '.join(map(str, lengths))} keys "
        "(the paper's figure has 64).",
        "a natural value for ε: the curve is smooth, and any threshold is a choice.",
    )
