"""Policies as text: `top:5@layer`, `above:3,effect=silence`, `random(top:5),match=mass`, `first:1 & window:64,first=4`."""

from __future__ import annotations

import re
from functools import reduce
from operator import and_

from sinkscope.base.errors import InputError
from sinkscope.base.textform import Notation
from sinkscope.policies.policy import POLICIES, Policy, Rule

ALLOWED = (
    "top:K, above:EPSILON, first:K, learned, kind:PUNCTUATION, token:ID+ID, keys:LAYER=COL+COL/LAYER=COL, window:WIDTH, "
    "keep:FRACTION, each with @head, @layer or @model and ,option=value behind; random(POLICY) for its control; "
    "POLICY & POLICY for both"
)


def allowed() -> str:
    """How policies are written, with the words that were registered from outside."""
    added = [word for word, kind in POLICIES.items() if not kind.__module__.startswith(f"{__package__}.")]
    return f"{ALLOWED}; registered here: {', '.join(added)}" if added else ALLOWED


def parse_policy(text: str) -> Policy | None:
    """Read the text form of a policy; "none" is no policy.

    >>> str(parse_policy("top:5@layer"))
    'top:5@layer'
    """
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"a policy is a text such as top:5@layer, got {text!r}; allowed are {allowed()}")
    if text.strip() == "none":
        return None
    rules: list[Policy] = [NOTATION.read(part.strip()) for part in _split(text)]
    return reduce(and_, rules)


def as_policy(policy: Policy | str | None) -> Policy | None:
    """A policy, given as one or as its text."""
    return parse_policy(policy) if isinstance(policy, str) else policy


def _split(text: str) -> list[str]:
    """Split at & outside of brackets and quoted texts."""
    parts, depth, start = [], 0, 0
    for mark in re.finditer(r'"(?:\\.|[^"\\])*"|[&()]', text):
        depth += (mark[0] == "(") - (mark[0] == ")")
        if mark[0] == "&" and depth == 0:
            parts.append(text[start : mark.start()])
            start = mark.end()
    return [*parts, text[start:]]


def _single(text: str) -> Rule:
    """The policy in brackets, whose control is meant."""
    policy = parse_policy(text)
    if not isinstance(policy, Rule):
        raise InputError(f"random(…) is the control of one policy, got {text!r}")
    return policy


NOTATION = Notation("policy", POLICIES, allowed, _single)
