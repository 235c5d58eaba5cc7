"""Table 2: the tokens that are sinks most often, with enrichment over chance and the base rate."""

from __future__ import annotations

from typing import Any

import pandas as pd
import xarray as xr

from sinkscope.report.figures import look
from sinkscope.report.figures.sources import by_trace, named
from sinkscope.sinks import composition
from sinkscope.statistics import Estimate


def plot_composition_table(traces: Any, *, top: int = 5) -> look.PaperFigure:
    """A printed table of the `top` most frequent tokens of each trace.

    Returns:
        Table: trace, and the columns of `sinkscope.sinks.composition` by token.
    """

    def rows(data: xr.Dataset) -> pd.DataFrame:
        tokens = composition(data, by="token", top=top)
        return tokens[tokens["detections"] > 0].reset_index(drop=True)

    table = by_trace(traces, rows)
    head = ["trace", "token", "frequency", "enrichment", "base rate"]
    figure = look.printed_table(head, [_row(row) for row in table.to_dict("records")], look.PAGE * 0.8)
    many = ", ".join(f"{name} {data.sizes['sample']}" for name, data in named(traces).items())
    return look.finished("table_2", figure, table, many=many)


def _row(row: dict[Any, Any]) -> list[str]:
    known = Estimate(row["enrichment"], row["enrichment_low"], row["enrichment_high"]).known
    interval = f" ({row['enrichment_low']:.1f}–{row['enrichment_high']:.1f})" if known else ""
    token = printable(str(row["text"])) or str(row["token"])
    return [
        str(row["trace"]),
        token,
        f"{row['frequency']:.3f}",
        f"{row['enrichment']:.1f}×{interval}",
        f"{row['base_rate']:.3f}",
    ]


def printable(text: str) -> str:
    """A token as a reader can see it, in ASCII escapes where a font may lack it, cut to 22 characters."""
    if text.isspace():
        return {" ": "space", "\n": "newline", "\t": "tab"}.get(text, repr(text)[1:-1])
    plain = "".join(c if c.isprintable() and ord(c) < 0x2500 else f"\\u{ord(c):04x}" for c in text)
    return plain if len(plain) <= 22 else plain[:21] + "…"
