"""sinkscope: an instrument for attention sinks in language models that generate step by step."""

from sinkscope.version import __version__

__all__ = ["__version__"]
