"""What runs are called in tables: by their policies, the controls of these, and extras."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

from sinkscope.base.errors import InputError
from sinkscope.base.extras import EXTRAS
from sinkscope.base.sink_rule import EPSILON
from sinkscope.policies import parse_policy
from sinkscope.policies.mask_first import MaskFirst
from sinkscope.policies.mask_top import MaskTop
from sinkscope.policies.policy import Policy, Rule
from sinkscope.policies.window import Window
from sinkscope.verdicts.diagnosis import WINDOW, WINDOW_FIRST
from sinkscope.verdicts.measures import control as control_of

SINK, NO_SINK = "strongest sink", "strongest key, no sink"
"""Roles of policies: `top:1` at head scope, only where the key is a sink, and only where it is none."""


class ControlName(NamedTuple):
    """The text of the policy that a control stands beside, how it is matched, and the name of all its draws together."""

    like: str
    match: str
    name: str


def parsed(policy: str) -> Policy | None:
    """The policy of a text; None for "none", and for one that nobody has registered here."""
    try:
        return parse_policy(policy)
    except InputError:
        return None


@lru_cache(maxsize=1024)
def control(policy: str) -> ControlName | None:
    """For the text of a random control: what it is a control of; None for anything else, also for an unknown policy.

    >>> control("random(top:5),match=mass,seed=2")
    ControlName(like='top:5', match='mass', name='random(top:5),match=mass')
    >>> control("window:32 & random(top:1),seed=1").like
    'window:32 & top:1'
    """
    drawn = parsed(policy)
    if drawn is None or drawn.control is None:
        return None
    return ControlName(str(drawn.original), drawn.control.match, str(drawn.with_seed(0)))


def name_of(settings: Mapping[str, Any]) -> str:
    """What a run is called in a table: its policy and extras, or "none"."""
    extras = (f"{name} {settings[name]}" for name in EXTRAS if name in settings)
    return " · ".join(filter(None, (settings["policy"], *extras))) or "none"


def pooled(policy: str) -> str:
    """The text of a policy; for a draw of a random control, the name of all its draws together."""
    kind = control(policy)
    return policy if kind is None else kind.name


def natural(text: str) -> list[tuple[int, float, str]]:
    """A key that sorts top:5 before top:10."""
    parts = re.findall(r"\d+(?:\.\d+)?|\D+", text)
    return [(0, float(part), "") if part[0].isdigit() else (1, 0.0, part) for part in parts]


def rule_of(policy: str) -> tuple[Rule | None, bool]:
    """A policy of one rule, without `by` and `prefill`, by which the same mask differs between kinds of models; else None.

    And whether it ranks keys by what distant queries give them.
    """
    rule = parsed(policy)
    if not isinstance(rule, Rule):
        return None, False
    names = {field.name for field in fields(rule)}
    changes: dict[str, Any] = {name: None for name in ("by", "prefill") if name in names}
    return replace(rule, **changes), getattr(rule, "by", None) == "distant"


@lru_cache(maxsize=1024)
def role(policy: str, causal: bool) -> str:
    """What rules ask for a policy as, whatever its text for this kind of model; "" for most.

    The strongest sink of a causal model is told by distant queries, as its sinks are.

    >>> role("random(top:1,epsilon=3,by=distant),match=mass", causal=True)
    'random(strongest sink),match=mass'
    """
    kind = control(policy)
    if kind is not None:
        like = role(kind.like, causal)
        return like and control_of(like, kind.match)
    rule, distant = rule_of(policy)
    if rule == MaskTop(1, epsilon=EPSILON) and causal == distant:
        return SINK
    if rule == MaskTop(1, epsilon=EPSILON, among="others"):
        return NO_SINK
    if isinstance(rule, Window) and rule in (Window(rule.width), Window(rule.width, first=4)):
        return WINDOW_FIRST if rule.first else WINDOW
    return ""


@lru_cache(maxsize=1024)
def label(policy: str, causal: bool) -> str:
    """A policy of a causal or another model in a few words, as the head of a line; its text where there are none.

    >>> label("top:1,epsilon=3,prefill=no,by=distant", True), label("random(top:1@model),match=mass", False)
    ('strongest sink', '  random keys, nearest in attention')
    """
    kind = control(policy)
    if kind is not None:
        return "  random keys, nearest in attention" if kind.match == "mass" else "  as many random keys"
    rule, distant = rule_of(policy)
    said = "no mask" if policy == "none" else ""
    if isinstance(rule, MaskTop) and rule == MaskTop(rule.k, rule.scope, rule.epsilon, rule.among, effect=rule.effect):
        many = "" if rule.k == 1 else f"{rule.k} "
        what = "key" if rule.among == "sinks" else "key, if no sink"
        if rule.epsilon is not None and rule.among == "sinks":
            # In a causal model the key that is ranked first may be no sink.
            what = "key, if a sink" if causal and not distant else "sink"
        scope = {"head": "", "layer": ", one a layer", "model": ", one a model"}[rule.scope]
        quiet = ", silenced" if rule.effect == "silence" else ""
        said = f"{many}strongest {what}{'s' * (rule.k > 1)}{scope}{quiet}"
    elif isinstance(rule, MaskFirst) and rule == MaskFirst(rule.k):
        said = "first token" if rule.k == 1 else f"first {rule.k} tokens"
    elif isinstance(rule, Window) and rule == Window(rule.width, rule.first, rule.future):
        first = f" and first {rule.first}" if rule.first else ""
        said = f"window of {rule.width}{first}" + ("" if rule.future is None else f", {rule.future} ahead")
    return said or policy
