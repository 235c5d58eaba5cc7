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
from sinkscope.decoding.fast_dllm_v2 import FastDllmDecoding
from sinkscope.decoding.llada import LladaDecoding
from sinkscope.decoding.llada2 import Llada2Decoding
from sinkscope.decoding.mdlm import MdlmDecoding
from sinkscope.decoding.mmada import MmadaDecoding
from sinkscope.decoding.mmada_image import MmadaImageDecoding
from sinkscope.decoding.open_dcoder import OpenDcoderDecoding
from sinkscope.decoding.reading import CausalReading, DenoisingReading, MaskedReading, Reading
from sinkscope.decoding.rnd1 import Rnd1Decoding
from sinkscope.decoding.sdar import SdarDecoding

__all__ = [
    "DECODINGS",
    "CausalDecoding",
    "CausalReading",
    "Decoding",
    "DenoisingReading",
    "DreamDecoding",
    "FastDllmDecoding",
    "GreedyDecoding",
    "Llada2Decoding",
    "LladaDecoding",
    "MaskedReading",
    "MdlmDecoding",
    "MmadaDecoding",
    "MmadaImageDecoding",
    "OpenDcoderDecoding",
    "Reading",
    "Rnd1Decoding",
    "SamplingDecoding",
    "SdarDecoding",
    "decoding_from_json",
    "decoding_from_options",
    "default_decoding",
    "option_names",
]
