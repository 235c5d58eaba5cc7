"""Approximate steps: rules that say what of earlier forwards is used again, one small frozen dataclass per file."""

from sinkscope.reuse.drift import DriftReuse
from sinkscope.reuse.prefix import PrefixReuse
from sinkscope.reuse.rule import REUSES, Reuse
from sinkscope.reuse.sparse import SparseReuse
from sinkscope.reuse.text import PRESETS, as_reuse, parse_reuse

__all__ = [
    "PRESETS",
    "REUSES",
    "DriftReuse",
    "PrefixReuse",
    "Reuse",
    "SparseReuse",
    "as_reuse",
    "parse_reuse",
]
