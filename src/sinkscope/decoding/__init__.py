"""Decodings: one file per official loop, with its options; each yields its steps, and `generation` drives and records them."""

from sinkscope.decoding.base import (
    DECODINGS,
    Decoding,
    decoding_from_json,
    decoding_from_options,
    default_decoding,
    option_names,
)
from sinkscope.decoding.causal import CausalDecoding, GreedyDecoding, SamplingDecoding
from sinkscope.decoding.dream import DreamDecoding
from sinkscope.decoding.llada import LladaDecoding
from sinkscope.decoding.mmada import MmadaDecoding
from sinkscope.decoding.mmada_image import MmadaImageDecoding
from sinkscope.decoding.reading import CausalReading, DenoisingReading, MaskedReading, Reading

__all__ = [
    "DECODINGS",
    "CausalDecoding",
    "CausalReading",
    "Decoding",
    "DenoisingReading",
    "DreamDecoding",
    "GreedyDecoding",
    "LladaDecoding",
    "MaskedReading",
    "MmadaDecoding",
    "MmadaImageDecoding",
    "Reading",
    "SamplingDecoding",
    "decoding_from_json",
    "decoding_from_options",
    "default_decoding",
    "option_names",
]
