"""The exemplars themselves: the trace viewer inside the page, as long as the file stays small."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from sinkscope.report.html import Parts, viewer_parts
from sinkscope.report.study.markup import Safe, section, spelled, tag
from sinkscope.report.study.source import Source

BUDGET = 4_000_000
"""Characters of traces that a report embeds; the whole file stays under 5 MB."""


class Embedded(NamedTuple):
    """The section, and the viewer's style and script for the page."""

    section: Safe
    parts: Parts


def traces(source: Source, budget: int = BUDGET) -> Embedded | None:
    """The section; None without traces, or when not even one fits."""
    from sinkscope.report.payload import views
    from sinkscope.trace.trace import Trace

    found: list[dict[str, Any]] = []
    left_out: list[str] = []
    used = 0
    for model, path in source.exemplars.items():
        made = views(Trace.open(path), name=spelled(model), samples=[0])
        size = len(json.dumps(made))
        if used + size > budget:
            left_out.append(model)
            continue
        used += size
        found += made
    if not found:
        return None
    parts = viewer_parts(found, name="exemplars", address=False, inside=True)
    about = (
        "One recorded generation of each model, chosen by rule: "
        + str(source.manifest.get("exemplars", "")).rstrip(".")
        + ". "
        "Choose trace, layer and head, drag through the steps, put two side by side. "
    )
    if left_out:
        about += f"Left out because the page would grow too large: {', '.join(left_out)}; sinkscope view shows them. "
    note = "A strong sink is not by itself an important one: only taking it away, against matched controls, can show that."
    return Embedded(section("traces", "The traces", tag("p", about, note), Safe(parts.body)), parts)
