"""Every policy that there is, once, with the options that it takes: what the shared matrix runs over.

A new policy is added to POLICIES, and passes when `pytest tests/policies` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import sinkscope as ss

SCORED: dict[str, Callable[..., Any]] = {
    "top": lambda **options: ss.MaskTop(3, **options),
    "top-epsilon": lambda **options: ss.MaskTop(4, epsilon=1.0, **options),
    "above": lambda **options: ss.MaskAbove(1.5, **options),
    "keep": lambda **options: ss.KeepTop(0.35, **options),
    "random-top": lambda **options: ss.MaskRandom(like=ss.MaskTop(3, **options), seed=4),
    "random-above": lambda **options: ss.MaskRandom(like=ss.MaskAbove(1.5, **options)),
    "random-keep": lambda **options: ss.MaskRandom(like=ss.KeepTop(0.7, **options)),
    "random-top-mass": lambda **options: ss.MaskRandom(like=ss.MaskTop(2, **options), match="mass"),
    "random-above-mass": lambda **options: ss.MaskRandom(like=ss.MaskAbove(1.5, **options), match="mass"),
}
"""Policies that look at received attention, with scope, scores, when and effect open."""

FIXED: dict[str, Callable[..., Any]] = {
    "keys": lambda **options: ss.MaskKeys({0: [0, 4], 1: [5, 9, 13], 2: [3]}, **options),
    "first": lambda **options: ss.MaskFirst(2, **options),
    "window": lambda **options: ss.Window(4, **options),
    "window-first": lambda **options: ss.Window(3, first=2, **options),
    "window-future": lambda **options: ss.Window(6, first=1, future=1, **options),
    "random-first": lambda **options: ss.MaskRandom(like=ss.MaskFirst(2, **options)),
    "random-keys": lambda **options: ss.MaskRandom(like=ss.MaskKeys({0: [0], 2: [3, 4]}, **options), seed=9),
    "random-first-mass": lambda **options: ss.MaskRandom(like=ss.MaskFirst(2, **options), match="mass"),
}
"""Policies that do not, with the effect open."""

COMBINED: dict[str, Any] = {
    "top&first": lambda **options: ss.MaskTop(2, **options) & ss.MaskFirst(1, **options),
    "window&keys": lambda **options: ss.Window(5, **options) & ss.MaskKeys({1: [0, 6]}, **options),
    "three": lambda **options: ss.MaskFirst(1, **options) & ss.MaskKeys({0: [5]}, **options) & ss.Window(6, **options),
}
"""Unions."""

RESTRICTED: dict[str, Any] = {
    "layers": lambda **options: ss.MaskTop(3, layers=[0, 2], **options),
    "steps": lambda **options: ss.MaskTop(3, steps=[2, 4], **options),
    "prompt": lambda **options: ss.MaskTop(3, regions="prompt", **options),
    "answer": lambda **options: ss.MaskTop(2, regions="answer", **options),
    "keep-prompt": lambda **options: ss.KeepTop(0.5, regions="prompt", **options),
    "first-layers-steps": lambda **options: ss.MaskFirst(2, layers=[1], steps=[0, 3], **options),
    "window-layers": lambda **options: ss.Window(4, layers=[1], **options),
    "random-prompt": lambda **options: ss.MaskRandom(like=ss.MaskTop(3, regions="prompt", **options)),
    "model-layer": lambda **options: ss.MaskTop(3, scope="model", layers=[1], **options),
}
"""Restricted to layers, steps or regions."""


def options() -> Iterator[dict[str, str]]:
    """Every combination of scope, scores, when and effect that a scored policy allows."""
    for effect in ("hide", "silence"):
        for scope in ("head", "layer", "model"):
            for scores in ("raw", "masked"):
                yield {"scope": scope, "scores": scores, "effect": effect}
            if scope != "model":
                yield {"scope": scope, "when": "same", "effect": effect}


def everything() -> Iterator[tuple[str, Any]]:
    """(name, policy) for the whole matrix."""
    for name, make in SCORED.items():
        for chosen in options():
            yield f"{name}-{'-'.join(chosen.values())}", make(**chosen)
    for name, make in {**FIXED, **COMBINED, **RESTRICTED}.items():
        for effect in ("hide", "silence"):
            yield f"{name}-{effect}", make(effect=effect)


def some(turn: int) -> Iterator[tuple[str, Any]]:
    """Every policy once; which options it gets turns with `turn`, so that settings together see all of them."""
    combinations = list(options())
    for index, (name, make) in enumerate(SCORED.items()):
        chosen = combinations[(index * 3 + turn * 5) % len(combinations)]
        yield f"{name}-{'-'.join(chosen.values())}", make(**chosen)
    for index, (name, make) in enumerate({**FIXED, **COMBINED, **RESTRICTED}.items()):
        effect = ("hide", "silence")[(index + turn) % 2]
        yield f"{name}-{effect}", make(effect=effect)
