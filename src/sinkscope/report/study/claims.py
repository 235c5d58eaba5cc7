"""The claims of "Attention Sinks in Diffusion Language Models" (arXiv 2510.15731), each with the rule that decides on it here.

`judge` is a pure function of the evidence. What a claim is about is a family of models: the paper speaks of LLaDA-8B, Dream-7B,
MMaDA-8B and Llama-3.1-8B. A verdict is about the model that was studied, not about those.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import tomllib

from sinkscope.report.study.evidence import TRACES, Evidence
from sinkscope.report.study.masking_rules import (
    collapses,
    due_to_sinks,
    keeps,
    loses_less_than_causal,
    loses_most,
    worse,
)
from sinkscope.report.study.rules import NOT_MEASURED, Judgement, Rule
from sinkscope.report.study.trace_rules import (
    drifts,
    enriched,
    kinds,
    later_and_less_sure,
    leads,
    measure,
    rarer,
    with_sinks,
)
from sinkscope.study.gpu_hours import DIFFUSION, Power, concerns


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Attributes:
        text: the claim in our words; where: its place in the paper; measured: how it is measured here; rule: how it is decided.
        families: the kinds of model that it is about.
        kind: the kind of evidence that decides on it; every task, or set of traces, is judged.
    """

    name: str
    theme: str
    text: str
    where: str
    measured: str
    rule: str
    families: tuple[str, ...]
    decide: Rule
    kind: str = TRACES


THEMES = "What breaks without them", "How many, and where", "Movement", "What they are made of"
"""In the order of the table: the paper's main question first."""

RULES: dict[str, Rule] = {
    "present": measure("heads without", 0.01, True, "of head-steps have one", complement=True),
    "filtered": measure("tokens filtered at ε = 3", 0.96, True, "of tokens"),
    "rare": measure("heads without", 0.5, True, "of head-steps have none"),
    "rarer": rarer("llada"),
    "fewer": with_sinks(
        measure(
            "sinks per head: change with depth",
            0.0,
            False,
            "sinks per head, first layer to last",
            shown="number",
        )
    ),
    "few": with_sinks(
        measure("one or two positions in the deepest layers", 0.5, True, "of steps have one or two")
    ),
    "early": with_sinks(
        measure(
            "absorbed: change with depth", 0.0, False, "of all attention, first layer to last", shown="number"
        )
    ),
    "late": with_sinks(
        measure(
            "main sink: change with depth", 0.0, True, "times uniform, first layer to last", shown="number"
        )
    ),
    "moving": kinds(moving=True),
    "static": kinds(moving=False),
    "start": with_sinks(measure("on the first 4 positions", 0.5, True, "of sink attention")),
    "lasting": with_sinks(measure("residences of one step", 0.5, False, "of residences last one step")),
    "right": drifts(+1, "moves as a block ends"),
    "left": drifts(-1),
    "rightmost": with_sinks(measure("first on the right-most mask", 0.25, True, "of such heads")),
    "split": with_sinks(measure("split beyond random classes", 0.0, True, "beyond random classes")),
    "newline": enriched("newline"),
    "punctuation": enriched("punctuation"),
    "whitespace": enriched("whitespace"),
    "end": enriched("end"),
    "masks": enriched("mask", "share"),
    "semantic": leads("semantic", "positional"),
    "positional": leads("positional", "semantic"),
    "robust-1": keeps("top:1"),
    "robust-5": keeps("top:5"),
    "dose": worse("top:10", "top:1"),
    "mostly": loses_most("top:10", DIFFUSION),
    "collapse": collapses("top:1"),
    "rival": loses_less_than_causal("top:1"),
    "rival-model": loses_less_than_causal("top:1@model"),
    "sinks": due_to_sinks("top:1"),
    "confidence": later_and_less_sure,
}
"""Claim → the rule that decides on it; claims.toml has its words."""

DATA = tomllib.loads((Path(__file__).parent / "claims.toml").read_text(encoding="utf-8"))
CLAIMS = tuple(
    Claim(
        name, told["theme"], told["text"], told["where"], told["measured"], told["rule"], tuple(told["families"]),
        RULES[name], told.get("evidence", TRACES),
    )
    for name, told in DATA.items()
)  # fmt: skip


def needs() -> list[Power]:
    """What each claim on accuracies needs to be decided, for the cheapest runs of a study."""
    told = {name: data["needs"] for name, data in DATA.items() if "needs" in data}
    return [
        Power(name, tuple(need["policies"]), tuple(need["families"]), need["documents"], need["effect"])
        for name, need in told.items()
    ]


def judge(evidence: Iterable[Evidence]) -> dict[str, dict[str, tuple[Judgement, ...]]]:
    """Claim → model → a judgement for each task or set of traces; none where a claim is not about this kind of model."""
    known = list(evidence)
    families = {one.model: one.family for one in known}
    return {
        claim.name: {
            model: tuple(
                claim.decide(one)._replace(about=one.about, rests=one.rests)
                for one in known
                if one.model == model and one.kind == claim.kind
            )
            or (NOT_MEASURED,)
            if concerns(claim.families, family)
            else ()
            for model, family in families.items()
        }
        for claim in CLAIMS
    }
