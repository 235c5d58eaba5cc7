"""The claims of "Attention Sinks in Diffusion Language Models" (arXiv 2510.15731), each with the rule that decides on it here.

`judge` is a pure function of the evidence. What a claim is about is a family of models: the paper speaks of LLaDA-8B, Dream-7B,
MMaDA-8B and Llama-3.1-8B. A verdict is about the model that was studied, not about those.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sinkscope.report.study import masking_rules, trace_rules
from sinkscope.report.study.evidence import TRACES, ModelEvidence
from sinkscope.report.study.rules import CONTRADICTED, NOT_MEASURED, OPEN, SUPPORTED, Judgement, Rule
from sinkscope.study.estimate import Power, concerns


@dataclass(frozen=True)
class Claim:
    """A claim of the paper.

    Attributes:
        text: the claim in our words; where: its place in the paper; measured: how it is measured here; rule: how it is decided.
        families: the kinds of model that it is about.
        kind: the kind of evidence that decides on it; every task, or set of traces, is judged.
        policies: that its rule compares; beside: families of the models that it compares with.
        power: what the rule finds in 80 % of simulated studies; "": it was not simulated by documents.
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
    policies: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    power: str = ""


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
        policies=tuple(told.get("policies", ())),
        beside=tuple(told.get("beside", ())),
        power="{documents} documents: {effect}".format(**told["needs"]) if "needs" in told else "",
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


Judged = dict[str, dict[str, tuple[Judgement, ...]]]
"""Claim → model → a judgement for each task or set of traces; none where a claim is not about this kind of model."""


def judge(evidence: Iterable[ModelEvidence]) -> Judged:
    """The judgements on all claims."""
    known = list(evidence)
    families = {one.model: one.family for one in known}
    return {
        claim.name: {
            model: tuple(
                _judged(claim, one.on(claim.policies))
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


def _judged(claim: Claim, evidence: ModelEvidence) -> Judgement:
    """The judgement, with what it rests on: of the model, and of models beside it that have something else."""
    found = claim.decide(evidence)
    if found == NOT_MEASURED:
        return found._replace(about=evidence.about)
    others = [other for other in evidence.others if other.family in claim.beside]
    rests = [evidence.rests, *(f"{one.model}: {one.rests}" for one in others if one.rests != evidence.rests)]
    return found._replace(about=evidence.about, rests="; ".join(rests))


def overall(judgements: Sequence[Judgement]) -> str:
    """What all tasks, or sets of traces, of a model say together: decided where one decides it and none says the opposite."""
    found = {judgement.status for judgement in judgements} - {OPEN}
    return found.pop() if len(found) == 1 else OPEN


@dataclass(frozen=True)
class Tally:
    """How many claims are decided.

    Attributes:
        claims: status → claims, each counted once for every model that it is about (`overall`).
        verdicts: status → verdicts, one for each of these and each task or set of traces.
    """

    claims: Counter[str]
    verdicts: Counter[str]

    @property
    def decided(self) -> int:
        """Claims that are supported or contradicted."""
        return self.claims[SUPPORTED] + self.claims[CONTRADICTED]

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """All numbers, for programs."""
        return {"claims": dict(self.claims), "verdicts": dict(self.verdicts)}

    @property
    def sentence(self) -> str:
        """For people; empty where no claim is about the models."""
        if not self.claims:
            return ""
        every = self.verdicts.total()
        return (
            f"{self.decided} of {self.claims.total()} claims are decided ({self.claims[SUPPORTED]} supported, "
            f"{self.claims[CONTRADICTED]} contradicted), each claim counted once for every model that it is about; "
            f"task by task these are {every} verdict{'' if every == 1 else 's'}, {every - self.verdicts[OPEN]} of them decided"
        )


def tally(judged: Judged) -> Tally:
    """The count of claims and verdicts."""
    rows = [judgements for by_model in judged.values() for judgements in by_model.values() if judgements]
    every = (judgement.status for judgements in rows for judgement in judgements)
    return Tally(Counter(map(overall, rows)), Counter(every))
