"""Approximate steps: rules that say what of earlier forwards is used again, one small frozen dataclass per file."""
