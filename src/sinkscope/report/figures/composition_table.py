"""Table 2: the tokens that are sinks most often, with enrichment over chance and the base rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from sinkscope.report.figures import look
from sinkscope.report.figures.sources import caption as words
from sinkscope.report.figures.sources import named
from sinkscope.report.figures.table import draw_table
from sinkscope.sinks import composition

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "table_2"
TITLE = "What sinks are made of"


def table(traces: Any, *, top: int = 5) -> pd.DataFrame:
    """trace and the columns of `sinkscope.sinks.composition` by token, the most frequent first."""
    parts = []
    for name, data in named(traces).items():
        part = composition(data, by="token", top=top)
        part = part[part["detections"] > 0].reset_index(drop=True)
        part.insert(0, "trace", name)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def spelled(text: str) -> str:
    """A token as a reader can see it, in ASCII escapes where a font may lack it."""
    if text.isspace():
        return {" ": "space", "\n": "newline", "\t": "tab"}.get(text, repr(text)[1:-1])
    plain = "".join(c if c.isprintable() and ord(c) < 0x2500 else f"\\u{ord(c):04x}" for c in text)
    return plain if len(plain) <= 22 else plain[:21] + "…"


def draw(data: pd.DataFrame) -> Figure:
    """A printed table."""
    rows = []
    for row in data.to_dict("records"):
        known = row["enrichment_low"] == row["enrichment_low"]
        interval = f" ({row['enrichment_low']:.1f}–{row['enrichment_high']:.1f})" if known else ""
        token = spelled(str(row["text"])) or str(row["token"])
        numbers = [
            f"{row['frequency']:.3f}",
            f"{row['enrichment']:.1f}×{interval}",
            f"{row['base_rate']:.3f}",
        ]
        rows.append([str(row["trace"]), token, *numbers])
    with look.style():
        return draw_table(["trace", "token", "frequency", "enrichment", "base rate"], rows, look.PAGE * 0.8)


def caption(traces: Any, data: pd.DataFrame) -> str:
    """What is seen, how it was computed, what it does not show."""
    found = named(traces)
    many = ", ".join(f"{name} {one.sizes['sample']}" for name, one in found.items())
    return words(
        "The tokens on which sinks are found most often. Enrichment is how much more often than chance: 1 means that "
        "the token is a sink as often as any other key of the same step and region.",
        "share of all detections (step, layer, head, key) at ε = 3; enrichment against detections spread evenly over the "
        "keys of the same step and region, 95 % interval over prompts where there are several; base rate: share of "
        f"key-steps. Generations: {many}.",
        "a cause: a token can be a sink for where it stands and not for what it is (`attribution` separates the two).",
    )
