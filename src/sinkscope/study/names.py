"""What runs are called in tables: by their policies, the controls of these, and rules of reuse."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from sinkscope.errors import InputError
from sinkscope.policies import parse_policy


class ControlName(NamedTuple):
    """The text of the policy that a control stands beside, how it is matched, and the name of all its draws together."""

    like: str
    match: str
    name: str


@lru_cache(maxsize=1024)
def control(policy: str | None) -> ControlName | None:
    """For the text of a random control: what it is a control of; None for anything else, also for an unknown policy.

    >>> control("random(top:5),match=mass,seed=2")
    ControlName(like='top:5', match='mass', name='random(top:5),match=mass')
    >>> control("window:32 & random(top:1),seed=1").like
    'window:32 & top:1'
    """
    try:
        parsed = parse_policy(policy) if policy else None
    except InputError:
        return None
    if parsed is None or parsed.control is None:
        return None
    return ControlName(str(parsed.control.like), parsed.control.match, str(parsed.with_seed(0)))


def name_of(settings: Mapping[str, Any]) -> str | None:
    """What a run is called in a table: its policy, None without one; "reuse RULE" where its steps are approximate."""
    policy, rule = settings["policy"], settings.get("reuse")
    return policy if rule is None else " · ".join(part for part in (policy, f"reuse {rule}") if part)


def pooled(policy: str) -> str:
    """The text of a policy; for a draw of a random control, the name of all its draws together."""
    kind = control(policy)
    return policy if kind is None else kind.name


def natural(text: str) -> list[tuple[int, float, str]]:
    """A key that sorts top:5 before top:10."""
    parts = re.findall(r"\d+(?:\.\d+)?|\D+", text)
    return [(0, float(part), "") if part[0].isdigit() else (1, 0.0, part) for part in parts]
