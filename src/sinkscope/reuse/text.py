"""Reuse rules as text: `prefix:8`, `sparse:0.5,by=sinks,refresh=8`, `drift:0.9`, or the name of a published setting."""

from __future__ import annotations

from typing import Any, NamedTuple

from sinkscope.base.errors import InputError
from sinkscope.base.textform import Notation
from sinkscope.reuse.rule import REUSES, Reuse
from sinkscope.reuse.shadow import Shadowed

ALLOWED = (
    "prefix:STEPS,fresh=block|rest|masks, sparse:KEEP,by=sinks|above|others|received|recent|first|random,refresh=STEPS, "
    "drift:COSINE,by=key|union,refresh=all|layers (STEPS may be block), or a published setting"
)


class Preset(NamedTuple):
    """A published setting in our words: the rule, the decoding options that go with it, where it is from, what differs."""

    rule: str
    decoding: dict[str, Any]
    source: str
    differs: str


PRESETS = {
    "fast-dllm": Preset(
        "prefix:block,fresh=rest",
        {"block": 32, "threshold": 0.9},
        "arXiv 2505.22618, prefix cache; block 32, threshold 0.9 in its evaluation scripts",
        "confidence is in the logits' dtype (LLaDA), where it computes float64; Dream has no blocks here, so its cache is "
        "refreshed once, at the prompt",
    ),
    "fast-dllm-dual": Preset(
        "prefix:block",
        {"block": 32, "threshold": 0.9},
        "arXiv 2505.22618, dual cache; block 32, threshold 0.9 in its evaluation scripts",
        "as fast-dllm",
    ),
    "dkv-cache": Preset(
        "prefix:8,fresh=masks",
        {"block": 64},
        "arXiv 2505.15781, the decode variant; cache_reloading_step 8 and block 64 in its README's example for LLaDA",
        "it begins every block anew with two full forwards, and here the refreshes run on over blocks; its reordering of "
        "cached and fresh columns is not needed",
    ),
    "sparse-dllm": Preset(
        "sparse:0.5,by=received",
        {"block": 32},
        "arXiv 2508.02558; keep_ratio 0.5, block 32, one step per token in its evaluation",
        "it scores by the mean query without a softmax, pools over 3 neighbours, and decides in the second step of a block, "
        "which is a full forward too",
    ),
    "elastic-cache": Preset(
        "drift:0.9,refresh=layers",
        {"block": 32, "threshold": 0.9},
        "arXiv 2510.14973; its code was not at hand: both numbers are from memory",
        "it compares attention weights, refreshes in the step that finds the drift, from the layer behind the drifting one on, "
        "and decodes in a sliding window",
    ),
    "streaming": Preset(
        "sparse:1024,by=first:4+recent",
        {},
        "arXiv 2309.17453; start_size 4",
        "positions stay those of the text, where it counts within the cache; the prompt is read in full",
    ),
    "h2o": Preset(
        "sparse:0.2,by=received+recent",
        {},
        "arXiv 2306.14048; a tenth heavy, a tenth recent",
        "one set for all heads of a layer, where it has one for each",
    ),
}
"""Name → a published operating point."""

NOTATION = Notation("reuse", REUSES, lambda: f"{ALLOWED}: {', '.join(PRESETS)}")


def parse_reuse(text: str) -> Reuse | None:
    """Read the text form of a rule or the name of a published setting; "none" is no rule.

    >>> str(parse_reuse("sparse:0.5,by=received"))
    'sparse:0.5,by=received'
    >>> str(parse_reuse("dkv-cache"))
    'prefix:8,fresh=masks'
    """
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"reuse is a text such as prefix:8, got {text!r}; allowed are {ALLOWED}")
    text = text.strip()
    if text == "none":
        return None
    rule: Reuse = NOTATION.read(PRESETS[text].rule if text in PRESETS else text)
    return rule


def as_reuse(reuse: Reuse | str | None) -> Reuse | None:
    """A rule, given as one or as its text."""
    if reuse is None or isinstance(reuse, Reuse):
        return reuse
    return parse_reuse(reuse)


def shadowed(reuse: Reuse | str) -> Shadowed:
    """A rule, given as one or as its text, with an exact forward beside each approximate one: see `Shadowed`."""
    rule = as_reuse(reuse)
    if rule is None:
        raise InputError(
            "a shadow measures the error of approximate steps; without reuse every step is exact"
        )
    return Shadowed(rule)
