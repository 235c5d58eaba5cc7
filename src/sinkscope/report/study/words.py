"""Words: the prose of the page, and of what tables name by short forms: policies, families, the colour of a model."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sinkscope.errors import InputError
from sinkscope.policies import MaskTop, parse_policy
from sinkscope.report.study.markup import Safe, figure, tag
from sinkscope.study.names import control
from sinkscope.text import listed

PROSE = tomllib.loads((Path(__file__).parent / "prose.toml").read_text(encoding="utf-8"))

CONTENTS: dict[str, str] = PROSE["sections"]
"""Anchor → title of every section, in the order of the page."""

DOCUMENTATION = {
    "report": "The report of a study",
    "studies": "Studies",
    "analysis": "Sink analysis",
    "inside": "Inside: what a sink holds",
}
"""Pages of the documentation that the report names: file → title."""

FAMILIES = {
    "llada": "masked diffusion, from scratch (as LLaDA)",
    "dream": "masked diffusion, from an autoregressive model (as Dream)",
    "mmada": "multimodal masked diffusion (as MMaDA)",
    "causal": "autoregressive",
    "llada_moe": "masked diffusion, mixture of experts (as LLaDA-MoE)",
    "llada2": "block diffusion, mixture of experts (as LLaDA2)",
    "sdar": "block diffusion, from an autoregressive model (as SDAR)",
    "fast_dllm_v2": "block diffusion, from an autoregressive model (as Fast-dLLM v2)",
    "a2d": "masked diffusion, from an autoregressive model (as A2D)",
    "rnd1": "masked diffusion, mixture of experts, from an autoregressive model (as RND1)",
    "open_dcoder": "masked diffusion, from an autoregressive model (as Open-dCoder)",
    "masked": "masked language model",
}
SCOPES = {"head": "each head its own", "layer": "one set per layer", "model": "one set for the model"}
COLOURS = ("s1", "s2", "s3", "s4", "s5", "s6")


def reading() -> str:
    """Where the documentation is: it is no part of the page, and lies where the project was checked out."""
    pages = listed(f"“{title}”" for title in DOCUMENTATION.values())
    return f"pages {pages} of sinkscope’s documentation; in a checkout of the project, make docs builds it into the folder site"


def note(name: str, **words: Any) -> str:
    """A note of prose.toml, in which `words` fill the braces."""
    return str(PROSE["notes"][name].format(**words))


def section(anchor: str, *children: Any) -> Safe:
    """A part of the page, with a heading that links can point to."""
    head = tag("h2", CONTENTS[anchor], id=f"{anchor}-title")
    return tag("section", head, *children, id=anchor, aria_labelledby=f"{anchor}-title")


def captioned(picture: Safe, name: str, data: Safe | None = None, **words: Any) -> Safe:
    """A picture with its caption of prose.toml, in which `words` fill the braces."""
    told = {part: text.format(**words) for part, text in PROSE["figures"][name].items()}
    return figure(picture, told["seen"], told["computed"], told["not_shown"], data)


class Dose(NamedTuple):
    """A policy that takes the k strongest keys, or its control. match: "", "count" or "mass"."""

    k: int
    scope: str
    silence: bool
    match: str


def dose(policy: str) -> Dose | None:
    """How many keys a policy takes and how; None for policies of another kind.

    >>> dose("random(top:5@model)")
    Dose(k=5, scope='model', silence=False, match='count')
    """
    kind = control(policy)
    try:
        rule = parse_policy(kind.like if kind else policy)
    except InputError:  # of a package that is not installed here
        return None
    if not isinstance(rule, MaskTop) or rule != MaskTop(rule.k, rule.scope, effect=rule.effect):
        return None
    return Dose(rule.k, rule.scope, rule.effect == "silence", kind.match if kind else "")


def policy_words(policy: str) -> str:
    """A policy for people.

    >>> policy_words("top:1@model")
    'strongest key hidden, one set for the model'
    """
    if policy == "none":
        return "nothing taken away"
    found = dose(policy)
    if found is None:
        return ""
    many = "strongest key" if found.k == 1 else f"{found.k} strongest keys"
    if found.match:
        equal = "as many random keys" if found.match == "count" else "random keys with as much attention"
        scope = "" if found.scope == "head" else f", {SCOPES[found.scope]}"
        return f"control: {equal} as top:{found.k}{scope}"
    return f"{many} {'silenced' if found.silence else 'hidden'}, {SCOPES.get(found.scope, found.scope)}"


def colour(model: str, models: Sequence[str]) -> str:
    """The class of a model's marks, the same in every picture."""
    return COLOURS[models.index(model) % len(COLOURS)]


def short(model: str) -> str:
    """A model's name in figures, as `drawing` writes it."""
    return model.removeprefix("organism/")
