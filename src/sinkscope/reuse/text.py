"""Reuse rules as text: `prefix:8`, `sparse:0.5,by=sinks,refresh=8`, `drift:0.9`, or the name of a published setting."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from sinkscope.base.errors import InputError
from sinkscope.base.textform import Notation
from sinkscope.reuse.agreement import Shadowed
from sinkscope.reuse.rule import REUSES, Reuse

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


_TOLD = tomllib.loads(Path(__file__).with_name("presets.toml").read_text(encoding="utf-8"))
PRESETS = {name: Preset(**told) for name, told in _TOLD.items()}
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


def shadowed(reuse: Reuse | str) -> Shadowed:
    """A rule, given as one or as its text, with an exact forward beside each approximate one: see `Shadowed`."""
    rule = reuse if isinstance(reuse, Reuse) else parse_reuse(reuse)
    if rule is None:
        raise InputError("a shadow measures the error of approximate steps; without reuse every step is exact")
    return Shadowed(rule)
