"""Traces: everything recorded about one generation, as labelled arrays in memory or streamed to disk."""
