"""Claims and questions as data: each names its rule, a function from measures to a verdict, and the rule's options."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sinkscope.base.checks import one_of
from sinkscope.sinks.judging import AUTO
from sinkscope.verdicts import holdings, mask_rules, trace_rules
from sinkscope.verdicts.measures import Kind, Measures
from sinkscope.verdicts.verdict import Question, Reason, Status, Verdict

DIFFUSION = ("llada", "dream", "mmada")
"""Families of diffusion models in the paper; a claim on all of them is about every diffusion model."""
THEMES = "What breaks without them", "How many, and where", "Movement", "What they are made of"
"""In the order of the table: the paper's main question first."""

NEARBY = 2.0, 6.0
"""Thresholds ε between which a verdict on traces must be the same: the paper's is a convention."""

TOLD = None, Reason.NO_MAJORITY, Reason.CHANCE, Reason.EVENTS_UNRELATED, Reason.NO_SINKS
"""Reasons by which a threshold says something: decided, or open for what it found. Estimates there have no interval."""

RULES: Mapping[str, Callable[..., Verdict]] = {
    rule.__name__: rule
    for rule in (
        trace_rules.against, trace_rules.either, trace_rules.drifts, trace_rules.fewer_than, trace_rules.later_and_less_sure,
        trace_rules.present, trace_rules.drains_or_hubs, trace_rules.kind_of_heads, trace_rules.direction,
        trace_rules.semantic_or_positional, mask_rules.loses, mask_rules.collapses, mask_rules.worse,
        mask_rules.loses_less_than_causal, mask_rules.loses_most, mask_rules.due_to_sinks, mask_rules.anchored,
        holdings.holds, holdings.probed,
    )
}  # fmt: skip
"""Every rule that a question may name."""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, or a question that is decided like one.

    Attributes:
        text: the claim in our words; where: its place in the paper; measured: how it is measured here; rule: how it is decided.
        families: the kinds of model that it is about; none: every one.
        kind: where its measures come from; every task, or set of traces, is judged.
        decide, options: the rule. yes, no: the answer where it is supported, or contradicted; says: status → the same in words.
        optional: it is only asked where its measure is there.
    """

    name: str
    decide: str
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: Kind = Kind.TRACES
    families: tuple[str, ...] = ()
    theme: str = ""
    text: str = ""
    where: str = ""
    measured: str = ""
    rule: str = ""
    yes: str = ""
    no: str = ""
    says: Mapping[str, str] = field(default_factory=dict)
    optional: bool = False

    def __post_init__(self) -> None:
        one_of("rule", self.decide, RULES)

    def concerns(self, family: str) -> bool:
        """Whether it is about models of a family."""
        everywhere = not self.families or (family != "causal" and set(DIFFUSION) <= set(self.families))
        return family in self.families or everywhere

    def takes(self, measures: Measures) -> bool:
        """Whether it is decided on such measures: texts are judged like accuracies."""
        return measures.kind == self.kind or (self.kind, measures.kind) == (Kind.ACCURACIES, Kind.TEXTS)

    def verdict(self, measures: Measures) -> Verdict:
        """The verdict on one subject in one setting; undecided where another ε says something else."""
        drawn = RULES[self.decide](measures, **self.options)
        words = {Status.SUPPORTED: self.yes, Status.CONTRADICTED: self.no}
        verdict = replace(
            drawn, question=self.name, subject=measures.subject, about=measures.about, n=drawn.n or measures.n,
            unit=measures.unit, rule=self.decide, answer=drawn.answer or words.get(drawn.status, ""), bears=measures.bears,
        )  # fmt: skip
        return verdict.unless(Reason.EPSILON if verdict.decided and self._flips(measures, drawn) else None)

    def _flips(self, measures: Measures, drawn: Verdict) -> bool:
        """Whether the estimates at another threshold of `NEARBY`, without their intervals, get another verdict."""
        near = map(partial(measures.judged_by, points=True), nearby(measures.elsewhere))
        other = [RULES[self.decide](judged, **self.options) for judged in near]
        told = [verdict for verdict in other if verdict.reason in TOLD]
        return any((verdict.status, verdict.answer) != (drawn.status, drawn.answer) for verdict in told)


def nearby(settings: Iterable[tuple[float, str]]) -> list[tuple[float, str]]:
    """Those (ε, rule) by which a verdict on traces must be the same."""
    return [at for at in settings if at[1] == AUTO and NEARBY[0] <= at[0] <= NEARBY[1]]


def read(file: str, *, coded: bool = False, **answers: str) -> tuple[Claim, ...]:
    """The questions of a file of this folder, in its order. coded: by their names in `Question`, which has their words.

    answers: yes and no, where the file has no others.
    """
    told = tomllib.loads((Path(__file__).parent / file).read_text(encoding="utf-8"))
    made = []
    for name, entry in told.items():
        options = dict(entry.pop("decide"))
        words: dict[str, Any] = answers | {key: value for key, value in entry.items() if key != "evidence"}
        words["families"] = tuple(words.get("families", ()))
        kind = Kind(entry.get("evidence", Kind.TRACES))
        made.append(Claim(Question[name].value if coded else name, options.pop("rule"), options, kind, **words))
    return tuple(made)


CLAIMS = read("claims.toml")
"""Of "Attention Sinks in Diffusion Language Models" (arXiv 2510.15731). A claim is about a family of models, there LLaDA-8B,
Dream-7B, MMaDA-8B and Llama-3.1-8B; a verdict is about the model that was studied, not about those."""

HOLDINGS = read("holdings.toml", yes="yes", no="no")


def held(measures: Measures, probes: Mapping[str, Sequence[str]]) -> list[Verdict]:
    """What the sinks of an inspected model hold. probes: label → the vectors that were asked for it."""
    made = [question.verdict(measures) for question in HOLDINGS]
    told = [
        Claim(f"Do sinks hold: {label}?", "probed", {"of": names}, yes="yes", no="no").verdict(measures)
        for label, names in probes.items()
    ]
    return [holdings.kind_of_sinks(*made[:3]), *made, *(v for v in told if v.reason != Reason.NOT_MEASURED)]


Judged = dict[str, dict[str, tuple[Verdict, ...]]]
"""Claim → model → a verdict for each task or set of traces; none where a claim is not about this kind of model."""


def judge(measured: Iterable[Measures]) -> Judged:
    """The verdicts on all claims."""
    known = list(measured)
    families = {measures.subject: measures.family for measures in known}
    return {
        claim.name: {model: _of_model(claim, model, family, known) for model, family in families.items()}
        for claim in CLAIMS
    }


def sensitivity(measured: Iterable[Measures]) -> Iterator[tuple[float, str, Verdict]]:
    """ε, rule and the verdict by them, for each claim on traces that it is about."""
    for measures in measured:
        for claim in CLAIMS:
            if claim.takes(measures) and claim.concerns(measures.family):
                for setting in measures.elsewhere:
                    yield *setting, claim.verdict(measures.judged_by(setting))


def _of_model(claim: Claim, model: str, family: str, known: Sequence[Measures]) -> tuple[Verdict, ...]:
    if not claim.concerns(family):
        return ()
    found = tuple(claim.verdict(measures) for measures in known if measures.subject == model and claim.takes(measures))
    return found or (Verdict(claim.name, model, rule=claim.decide, reason=Reason.NOT_MEASURED),)


def overall(verdicts: Sequence[Verdict]) -> Status:
    """What all tasks, or sets of traces, of a model say together: decided where one decides it and none says the opposite."""
    found = {verdict.status for verdict in verdicts} - {Status.UNDECIDED}
    return found.pop() if len(found) == 1 else Status.UNDECIDED
