"""Decodings: one file per official loop, with its options; each yields its steps, and `generation` drives and records them."""

from sinkscope.decoding.base import (
    DECODINGS,
    Decoding,
    decoding_from_json,
    decoding_from_options,
    default_decoding,
    option_fields,
)

__all__ = ["DECODINGS", "Decoding", "decoding_from_json", "decoding_from_options", "default_decoding", "option_fields"]
