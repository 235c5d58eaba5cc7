"""Approximate steps: rules that say what of earlier forwards is used again, one small frozen dataclass per file."""

from sinkscope.reuse.rule import REUSES, Reuse
from sinkscope.reuse.text import PRESETS, as_reuse, parse_reuse, shadowed

__all__ = ["PRESETS", "REUSES", "Reuse", "as_reuse", "parse_reuse", "shadowed"]
