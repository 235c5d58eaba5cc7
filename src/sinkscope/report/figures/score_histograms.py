"""Figure 9: the histograms of several traces side by side, drawn as figure 3 is."""

from __future__ import annotations

from sinkscope.report.figures.score_histogram import caption, draw, table

NAME = "figure_9"
TITLE = "How often each score occurs, by trace"

__all__ = ["NAME", "TITLE", "caption", "draw", "table"]
