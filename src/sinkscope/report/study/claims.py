"""The claims of "Attention Sinks in Diffusion Language Models" (arXiv 2510.15731), each with the rule that decides on it here.

`judge` is a pure function of the evidence. What a claim is about is a family of models: the paper speaks of LLaDA-8B, Dream-7B,
MMaDA-8B and Llama-3.1-8B. A verdict is about the model that was studied, not about those.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib

from sinkscope.report.study import masking_rules, trace_rules
from sinkscope.report.study.evidence import TRACES, Evidence
from sinkscope.report.study.rules import NOT_MEASURED, Judgement, Rule
from sinkscope.study.gpu_hours import Power, concerns


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

RULES = {**vars(trace_rules), **vars(masking_rules)}
DATA = tomllib.loads((Path(__file__).parent / "claims.toml").read_text(encoding="utf-8"))


def _claim(name: str, told: dict[str, Any]) -> Claim:
    """An entry of claims.toml, which names the function that decides on it and its options."""
    options = {key: value for key, value in told["decide"].items() if key != "rule"}
    words = {key: told[key] for key in ("theme", "text", "where", "measured", "rule")}
    return Claim(
        name=name,
        families=tuple(told["families"]),
        decide=RULES[told["decide"]["rule"]](**options),
        kind=told.get("evidence", TRACES),
        **words,
    )


CLAIMS = tuple(_claim(name, told) for name, told in DATA.items())


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
