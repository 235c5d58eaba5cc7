"""Sink analysis: pure functions of traces.

Where sinks are (`detect`, `sink_table`, `summary`), how strong (`depth_profile`, `layer_head_map`, …), moving or not
(`residences`, `paths`, `moves`), made of what (`composition`, `attribution`, `counterfactual`), what
changed between two traces (`compare_traces`); what follows is in `verdicts`. No model, no device, no files: a trace or its
`xarray.Dataset` in, xarray or pandas out. See docs/analysis.md.
"""

from sinkscope.sinks.anatomy import anatomy
from sinkscope.sinks.attribution import attribution
from sinkscope.sinks.calibration import calibration
from sinkscope.sinks.categories import CATEGORIES, category_of
from sinkscope.sinks.compare import compare_traces, mechanisms
from sinkscope.sinks.composition import composition
from sinkscope.sinks.counterfactual import counterfactual, insertion_alignment
from sinkscope.sinks.depth import depth_profile
from sinkscope.sinks.detection import detect, sinks_of, unknown
from sinkscope.sinks.dynamics import moves, paths, residences
from sinkscope.sinks.sink_statistics import SinkStatistics, merge, sink_statistics
from sinkscope.sinks.strength import (
    filtered_share,
    layer_head_map,
    score_histogram,
    sink_heads_share,
    step_position_map,
)
from sinkscope.sinks.summary_table import summary
from sinkscope.sinks.table import sink_table

__all__ = [
    "CATEGORIES", "SinkStatistics", "anatomy", "attribution", "calibration", "category_of", "compare_traces", "composition",
    "counterfactual", "depth_profile", "detect", "filtered_share", "insertion_alignment", "layer_head_map", "mechanisms", "merge",
    "moves", "paths", "residences", "score_histogram", "sink_heads_share", "sink_statistics", "sink_table", "sinks_of",
    "step_position_map", "summary", "unknown",
]  # fmt: skip
