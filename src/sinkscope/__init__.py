"""sinkscope: an instrument for attention sinks in language models that generate step by step.

The public names, and nothing else. They are imported when first used, so that `import sinkscope` and `sinkscope --help`
stay fast and a machine without xarray or pandas can still load, generate and train.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sinkscope.errors import CheckpointError, InputError, SinkscopeError
from sinkscope.trace.renderers import renderers
from sinkscope.version import __version__

if TYPE_CHECKING:
    from sinkscope.decoding import (
        CausalDecoding,
        CausalReading,
        Decoding,
        DenoisingReading,
        DreamDecoding,
        FastDllmDecoding,
        GreedyDecoding,
        Llada2Decoding,
        LladaDecoding,
        MaskedReading,
        MdlmDecoding,
        MmadaDecoding,
        MmadaImageDecoding,
        OpenDcoderDecoding,
        Rnd1Decoding,
        SamplingDecoding,
        SdarDecoding,
    )
    from sinkscope.generation.generate import generate
    from sinkscope.generation.replay import Replay, replay
    from sinkscope.generation.run import Run
    from sinkscope.inspection.lens import Lens, lens
    from sinkscope.inspection.patch import Patch, patch
    from sinkscope.models.load import load
    from sinkscope.models.model import Model
    from sinkscope.models.wrap import wrap
    from sinkscope.policies import (
        FixedRule,
        KeepTop,
        MaskAbove,
        MaskFirst,
        MaskKeys,
        MaskKind,
        MaskRandom,
        MaskToken,
        MaskTop,
        Policy,
        ScoredRule,
        Window,
        parse_policy,
    )
    from sinkscope.registration import register
    from sinkscope.reuse import DriftReuse, PrefixReuse, Reuse, SparseReuse, parse_reuse
    from sinkscope.sinks import compare_traces, detect, diagnose, sink_table, summary
    from sinkscope.tasks.evaluate import evaluate
    from sinkscope.tasks.evaluation import Evaluation
    from sinkscope.trace.capture import Capture
    from sinkscope.trace.trace import Trace

_NAMES = {
    "sinkscope.models.load": ("load",),
    "sinkscope.models.model": ("Model",),
    "sinkscope.models.wrap": ("wrap",),
    "sinkscope.policies": (
        "FixedRule",
        "KeepTop",
        "MaskAbove",
        "MaskFirst",
        "MaskKeys",
        "MaskKind",
        "MaskRandom",
        "MaskToken",
        "MaskTop",
        "Policy",
        "ScoredRule",
        "Window",
        "parse_policy",
    ),
    "sinkscope.registration": ("register",),
    "sinkscope.reuse": ("DriftReuse", "PrefixReuse", "Reuse", "SparseReuse", "parse_reuse"),
    "sinkscope.decoding": (
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
        "Rnd1Decoding",
        "SamplingDecoding",
        "SdarDecoding",
    ),
    "sinkscope.generation.generate": ("generate",),
    "sinkscope.generation.replay": ("Replay", "replay"),
    "sinkscope.generation.run": ("Run",),
    "sinkscope.inspection.lens": ("Lens", "lens"),
    "sinkscope.inspection.patch": ("Patch", "patch"),
    "sinkscope.sinks": ("compare_traces", "detect", "diagnose", "sink_table", "summary"),
    "sinkscope.tasks.evaluate": ("evaluate",),
    "sinkscope.tasks.evaluation": ("Evaluation",),
    "sinkscope.trace.capture": ("Capture",),
    "sinkscope.trace.trace": ("Trace",),
}
"""Module → the public names that it defines."""

_WHERE = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "Capture",
    "CausalDecoding",
    "CausalReading",
    "CheckpointError",
    "Decoding",
    "DenoisingReading",
    "DreamDecoding",
    "DriftReuse",
    "Evaluation",
    "FastDllmDecoding",
    "FixedRule",
    "GreedyDecoding",
    "InputError",
    "KeepTop",
    "Lens",
    "Llada2Decoding",
    "LladaDecoding",
    "MaskAbove",
    "MaskFirst",
    "MaskKeys",
    "MaskKind",
    "MaskRandom",
    "MaskToken",
    "MaskTop",
    "MaskedReading",
    "MdlmDecoding",
    "MmadaDecoding",
    "MmadaImageDecoding",
    "Model",
    "OpenDcoderDecoding",
    "Patch",
    "Policy",
    "PrefixReuse",
    "Replay",
    "Reuse",
    "Rnd1Decoding",
    "Run",
    "SamplingDecoding",
    "ScoredRule",
    "SdarDecoding",
    "SinkscopeError",
    "SparseReuse",
    "Trace",
    "Window",
    "__version__",
    "compare_traces",
    "detect",
    "diagnose",
    "evaluate",
    "generate",
    "lens",
    "load",
    "parse_policy",
    "parse_reuse",
    "patch",
    "register",
    "replay",
    "sink_table",
    "summary",
    "wrap",
]


def _reported(module: str, function: str) -> Any:
    """A function of `sinkscope.report`, imported when it is first called."""

    def call(*given: Any, **options: Any) -> Any:
        return getattr(import_module(f"sinkscope.report.{module}"), function)(*given, **options)

    return call


renderers.update(
    html=_reported("html", "write_viewer"),
    widget=_reported("notebook", "trace_widget"),
    preview=_reported("notebook", "trace_preview"),
)


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'sinkscope' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_WHERE[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
